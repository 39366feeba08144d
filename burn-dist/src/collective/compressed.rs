//! Ring reductions of `f32` with compression: partial sums and results travel in half the bytes.
//!
//! A member of the ring (a rank or a node) adds its elements in `f32` to the sum that arrives, and
//! rounds the result to send it on. The owner of a shard uses the rounded result too, so that all
//! ranks have the same bits. For a mean every rank divides its share first: sums in `f16` would
//! overflow sooner.

use std::ops::Range;

use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};

use super::ring::{Contribution, Load, SEGMENT, Visit, chunk, gathering, reducing, run};
use super::{Failure, Ring};
use crate::buffer::Buffer;
use crate::element::{DType, ReduceOp};
use crate::reduce::vectorised;
use crate::shard::Cuts;

/// Elements converted at a time: they stay in the L1 cache.
const BLOCK: usize = 512;

/// Reduces `data` over all ranks, in place. It travels as type `wire`.
pub(super) fn all_reduce(
    ring: &mut Ring<'_>,
    data: &mut [f32],
    (wire, op): (DType, ReduceOp),
) -> Result<(), Failure> {
    let at = ring.at;
    let bytes = data.len() * wire.size();
    let owned = |rank| chunk(bytes, wire, &Cuts::Even, at.size, rank);
    let own = Own::of(data, op, at.size);
    reduce_all(ring, (own, wire), owned)
}

/// Reduces `data` over all ranks. Afterwards only this rank's shard is valid.
pub(super) fn reduce_scatter(
    ring: &mut Ring<'_>,
    data: &mut [f32],
    (wire, op): (DType, ReduceOp),
    cuts: &Cuts,
) -> Result<(), Failure> {
    let at = ring.at;
    let bytes = data.len() * wire.size();
    let owned = |rank| chunk(bytes, wire, cuts, at.size, rank);
    let own = Own::of(data, op, at.size);
    reduce_owned(ring, (own, wire), owned)
}

/// Elements of type `f32`, as bytes.
pub(super) struct Own<C> {
    pub elements: C,
    /// Number of elements.
    pub len: usize,
    /// Divisor of every share of a sum.
    pub divisor: f32,
}

impl<'a> Own<&'a mut [u8]> {
    fn of(data: &'a mut [f32], op: ReduceOp, ranks: usize) -> Self {
        Self {
            len: data.len(),
            elements: bytemuck::cast_slice_mut(data),
            divisor: divisor(op, ranks),
        }
    }
}

/// The divisor of a rank's share in a reduction.
pub(super) fn divisor(op: ReduceOp, ranks: usize) -> f32 {
    match op {
        ReduceOp::Mean => ranks as f32,
        _ => 1.0,
    }
}

/// Reduces the elements of all members; all get the result. Member `i` reduces the bytes `owned(i)`
/// of the wire format.
pub(super) fn reduce_all(
    ring: &mut Ring<'_>,
    (own, wire): (Own<impl Contribution>, DType),
    owned: impl Fn(usize) -> Range<usize>,
) -> Result<(), Failure> {
    let at = ring.at;
    let mut route = reducing(at, own.elements.begins_where_it_ends(), &owned);
    let mut load = Compressed::new(own, wire, route.head());
    route.go_on(gathering(at, &owned));
    run(ring, &mut load, route)?;
    (0..at.size).for_each(|member| load.take(owned(member)));
    Ok(())
}

/// Reduces the elements of all members; member `i` gets the bytes `owned(i)` of the result, in the
/// wire format.
pub(super) fn reduce_owned(
    ring: &mut Ring<'_>,
    (own, wire): (Own<impl Contribution>, DType),
    owned: impl Fn(usize) -> Range<usize>,
) -> Result<(), Failure> {
    let route = reducing(ring.at, own.elements.begins_where_it_ends(), &owned);
    let mut load = Compressed::new(own, wire, route.head());
    run(ring, &mut load, route)?;
    load.take(owned(ring.at.rank));
    Ok(())
}

/// Elements of this member of the ring, and what travels of them and of the sums.
struct Compressed<C> {
    own: Own<C>,
    wire: Buffer,
    /// The part of the sum beginning here that is not rounded yet.
    head: Range<usize>,
}

impl<C: Contribution> Compressed<C> {
    /// The bytes `head` are sent before anything arrives.
    fn new(own: Own<C>, wire: DType, head: Range<usize>) -> Self {
        Self {
            wire: Buffer::recycled(wire, own.len),
            own,
            head,
        }
    }

    /// Rounds the sum of this member's share and `part`, the sum so far, into the bytes `place`.
    fn round(&mut self, place: Range<usize>, part: Option<&[u8]>, visit: Visit) {
        let elements = place.start * 2..place.end * 2;
        let own: &[f32] = bytemuck::cast_slice(self.own.elements.share(elements, visit));
        let dtype = self.wire.dtype();
        let wire = &mut self.wire.bytes_mut()[place];
        match dtype {
            DType::F16 => add::<f16>(own, part, wire, self.own.divisor),
            _ => add::<bf16>(own, part, wire, self.own.divisor),
        }
    }

    /// Takes the bytes `place`, which have arrived, as the result.
    fn take(&mut self, place: Range<usize>) {
        let elements = place.start * 2..place.end * 2;
        let own = self.own.elements.bytes_mut(elements.clone());
        let own: &mut [f32] = bytemuck::cast_slice_mut(own);
        let wire = &self.wire.bytes()[place];
        match self.wire.dtype() {
            DType::F16 => f16::widen(bytemuck::cast_slice(wire), own),
            _ => bf16::widen(bytemuck::cast_slice(wire), own),
        }
        self.own.elements.hand_out(elements);
    }
}

impl<C: Contribution> Load for Compressed<C> {
    fn bytes(&self, place: Range<usize>) -> &[u8] {
        &self.wire.bytes()[place]
    }

    fn head(&mut self, place: Range<usize>) -> &[u8] {
        while self.head.start < place.end.min(self.head.end) {
            let end = (self.head.start + SEGMENT).min(self.head.end);
            self.round(self.head.start..end, None, Visit::First);
            self.head.start = end;
        }
        self.bytes(place)
    }

    fn bytes_mut(&mut self, place: Range<usize>) -> &mut [u8] {
        &mut self.wire.bytes_mut()[place]
    }

    fn add(&mut self, place: Range<usize>, part: &[u8], is_last: bool) {
        // The part that began here has been sent on before the sum returns to the same place.
        let visit = match is_last {
            true => Visit::Last,
            false => Visit::Middle,
        };
        self.round(place, Some(part), visit);
    }
}

/// A type of two bytes.
trait Half: bytemuck::Pod {
    fn widen(from: &[Self], to: &mut [f32]);
    fn narrow(from: &[f32], to: &mut [Self]);
}

impl Half for bf16 {
    fn widen(from: &[Self], to: &mut [f32]) {
        vectorised(
            #[inline(always)]
            || {
                for (to, from) in to.iter_mut().zip(from) {
                    *to = from.to_f32();
                }
            },
        );
    }

    fn narrow(from: &[f32], to: &mut [Self]) {
        vectorised(
            #[inline(always)]
            || {
                for (to, from) in to.iter_mut().zip(from) {
                    *to = bf16::from_f32(*from);
                }
            },
        );
    }
}

/// CPUs have instructions for this conversion, which a loop does not compile to.
impl Half for f16 {
    fn widen(from: &[Self], to: &mut [f32]) {
        from.convert_to_f32_slice(to);
    }

    fn narrow(from: &[f32], to: &mut [Self]) {
        to.convert_from_f32_slice(from);
    }
}

/// Computes `wire = part + own / divisor`, rounded.
fn add<H: Half>(own: &[f32], part: Option<&[u8]>, wire: &mut [u8], divisor: f32) {
    let part: Option<&[H]> = part.map(bytemuck::cast_slice);
    let wire: &mut [H] = bytemuck::cast_slice_mut(wire);
    let mut sums = [0.0; BLOCK];
    for (block, (own, wire)) in own.chunks(BLOCK).zip(wire.chunks_mut(BLOCK)).enumerate() {
        let sums = &mut sums[..own.len()];
        match part.and_then(|part| part.chunks(BLOCK).nth(block)) {
            Some(part) => H::widen(part, sums),
            None => sums.fill(0.0),
        }
        vectorised(
            #[inline(always)]
            || {
                for (sum, own) in sums.iter_mut().zip(own) {
                    *sum += own / divisor;
                }
            },
        );
        H::narrow(sums, wire);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rounded<H: Half>(own: &[f32], part: Option<&[H]>, divisor: f32) -> Vec<f32> {
        let mut wire = vec![0u16; own.len()];
        let part = part.map(bytemuck::cast_slice);
        add::<H>(own, part, bytemuck::cast_slice_mut(&mut wire), divisor);
        let mut wide = vec![0.0; own.len()];
        H::widen(bytemuck::cast_slice(&wire), &mut wide);
        wide
    }

    #[test]
    fn own_elements_are_added_before_rounding() {
        // 1 + 2^-9 is not a bf16; 1 + 2^-8 + 2^-9 rounds up.
        let own = [2f32.powi(-9), 2f32.powi(-8) + 2f32.powi(-9)];
        let part = [bf16::ONE; 2];
        let found = rounded(&own, Some(&part), 1.0);
        assert_eq!(found, [1.0, 1.0 + 2f32.powi(-7)]);
        let part = [f16::ONE; 2];
        let found = rounded(&own, Some(&part), 1.0);
        assert_eq!(found, [1.0 + own[0], 1.0 + own[1]]);
    }

    #[test]
    fn all_blocks_are_converted() {
        let own: Vec<f32> = (0..2 * BLOCK + 7).map(|i| (i % 200) as f32).collect();
        let part: Vec<bf16> = own.iter().map(|x| bf16::from_f32(*x)).collect();
        let halves: Vec<f32> = own.iter().map(|x| x / 2.0).collect();
        assert_eq!(rounded::<bf16>(&own, None, 2.0), halves);
        assert_eq!(rounded(&own, Some(&part), f32::INFINITY), own);
    }

    #[test]
    fn what_is_no_number_stays_so() {
        let found = rounded::<bf16>(&[f32::NAN, f32::INFINITY, 1e38], None, 1.0);
        assert!(found[0].is_nan() && found[1] == f32::INFINITY && found[2].is_finite());
        let found = rounded::<f16>(&[f32::NAN, f32::NEG_INFINITY, 1e5], None, 1.0);
        assert!(found[0].is_nan() && found[1] == f32::NEG_INFINITY);
        assert_eq!(found[2], f32::INFINITY);
    }
}
