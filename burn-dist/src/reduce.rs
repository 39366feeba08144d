//! Element-wise reductions over host memory, in vector code chosen at run time.
//!
//! Elements are added in the order of the parts (or of the calls), so the result does not depend on
//! the rank or thread that computes it. Sums of half-precision types accumulate in `f32` and are
//! rounded once.

use half::{bf16, f16};

use crate::element::{DType, Element, ReduceOp};

/// Elements accumulated at a time if more than two parts are combined: their sums stay in the L1
/// cache.
const BLOCK: usize = 512;

/// Arithmetic that a reduction needs.
pub(crate) trait Number: Element {
    /// The type in which sums are computed.
    type Sum: Copy + PartialOrd;
    fn widen(self) -> Self::Sum;
    fn narrow(sum: Self::Sum) -> Self;
    fn add(a: Self::Sum, b: Self::Sum) -> Self::Sum;
    fn divide(sum: Self::Sum, by: usize) -> Self::Sum;
}

macro_rules! float {
    ($type:ty, $sum:ty, $widen:expr, $narrow:expr) => {
        impl Number for $type {
            type Sum = $sum;
            #[inline(always)]
            fn widen(self) -> $sum {
                $widen(self)
            }
            #[inline(always)]
            fn narrow(sum: $sum) -> Self {
                $narrow(sum)
            }
            #[inline(always)]
            fn add(a: $sum, b: $sum) -> $sum {
                a + b
            }
            #[inline(always)]
            fn divide(sum: $sum, by: usize) -> $sum {
                sum / by as $sum
            }
        }
    };
}
float!(f32, f32, |x| x, |x| x);
float!(f64, f64, |x| x, |x| x);
float!(f16, f32, f16::to_f32, f16::from_f32);
float!(bf16, f32, bf16::to_f32, bf16::from_f32);

macro_rules! integer {
    ($($type:ty),*) => {$(
        impl Number for $type {
            type Sum = $type;
            #[inline(always)]
            fn widen(self) -> $type {
                self
            }
            #[inline(always)]
            fn narrow(sum: $type) -> Self {
                sum
            }
            #[inline(always)]
            fn add(a: $type, b: $type) -> $type {
                a.wrapping_add(b)
            }
            // A mean of integers is refused before it gets here.
            #[inline(always)]
            fn divide(sum: $type, _by: usize) -> $type {
                sum
            }
        }
    )*};
}
integer!(i32, i64, u8);

/// `$body` with the name `$type` for a Rust type.
macro_rules! bound {
    ($type:ident = $rust:ty => $body:expr) => {{
        type $type = $rust;
        $body
    }};
}
pub(crate) use bound;

/// Calls `$body` with the Rust type of a run-time element type bound to `$type`.
macro_rules! with_type {
    ($dtype:expr, $type:ident => $body:expr) => {
        match $dtype {
            DType::F32 => bound!($type = f32 => $body),
            DType::F16 => bound!($type = f16 => $body),
            DType::BF16 => bound!($type = bf16 => $body),
            DType::F64 => bound!($type = f64 => $body),
            DType::I32 => bound!($type = i32 => $body),
            DType::I64 => bound!($type = i64 => $body),
            DType::U8 => bound!($type = u8 => $body),
        }
    };
}

/// Whether `value` is NaN. A comparison with NaN gives NaN, on either side.
#[inline(always)]
#[expect(clippy::eq_op, reason = "only NaN differs from itself")]
fn is_nan<T: PartialOrd + Copy>(value: T) -> bool {
    value != value
}

/// Calls `$body` with the combination and the last step of a reduction bound to the two names, as
/// functions that are inlined into the loop.
macro_rules! with_op {
    ($op:expr, $type:ty, $ranks:expr, ($combine:ident, $finish:ident) => $body:expr) => {{
        let ranks = $ranks;
        match $op {
            ReduceOp::Sum => {
                let $combine = <$type as Number>::add;
                let $finish = |sum: <$type as Number>::Sum| sum;
                $body
            }
            ReduceOp::Mean => {
                let $combine = <$type as Number>::add;
                let $finish =
                    move |sum: <$type as Number>::Sum| <$type as Number>::divide(sum, ranks);
                $body
            }
            ReduceOp::Min => {
                let $combine = |a: <$type as Number>::Sum, b: <$type as Number>::Sum| {
                    if b < a || is_nan(b) { b } else { a }
                };
                let $finish = |least: <$type as Number>::Sum| least;
                $body
            }
            ReduceOp::Max => {
                let $combine = |a: <$type as Number>::Sum, b: <$type as Number>::Sum| {
                    if b > a || is_nan(b) { b } else { a }
                };
                let $finish = |most: <$type as Number>::Sum| most;
                $body
            }
        }
    }};
}

/// Reduces `parts` of equal length, one per rank in this order, and writes the result to all of
/// them.
pub(crate) fn all(dtype: DType, op: ReduceOp, parts: &mut [&mut [u8]]) {
    let ranks = parts.len();
    with_type!(dtype, T => with_op!(op, T, ranks, (combine, finish) => {
        if let [a, b] = parts {
            let (a, b) = (bytemuck::cast_slice_mut(a), bytemuck::cast_slice_mut(b));
            return vectorised(#[inline(always)] || both::<T>(a, b, combine, finish));
        }
        let mut parts: Vec<&mut [T]> = parts.iter_mut().map(|p| bytemuck::cast_slice_mut(p)).collect();
        vectorised(#[inline(always)] || every::<T>(&mut parts, combine, finish));
    }))
}

/// Reduces `parts` of equal length, one per rank in this order, into `out`.
pub(crate) fn into(dtype: DType, op: ReduceOp, parts: &[&[u8]], out: &mut [u8]) {
    let ranks = parts.len();
    with_type!(dtype, T => with_op!(op, T, ranks, (combine, finish) => {
        let parts: Vec<&[T]> = parts.iter().map(|p| bytemuck::cast_slice(p)).collect();
        let out: &mut [T] = bytemuck::cast_slice_mut(out);
        vectorised(#[inline(always)] || gather::<T>(&parts, out, combine, finish));
    }))
}

/// Sums `parts` of equal length into `out` in the order of a tree: after part `k`, the last two
/// sums are replaced by their sum `additions[k]` times. One sum must be left at the end.
///
/// Every sum is rounded to the element type, so it has the same bits whoever computes it. A mean is
/// the sum, divided by `divisor`.
pub(crate) fn tree(
    dtype: DType,
    (parts, additions): (&[&[u8]], &[usize]),
    divisor: Option<usize>,
    out: &mut [u8],
) {
    with_type!(dtype, T => {
        let parts: Vec<&[T]> = parts.iter().map(|p| bytemuck::cast_slice(p)).collect();
        let out: &mut [T] = bytemuck::cast_slice_mut(out);
        vectorised(#[inline(always)] || ordered::<T>(&parts, additions, divisor, out));
    })
}

/// Computes `left += right`, element by element; the sum is rounded to the element type.
pub(crate) fn add(dtype: DType, left: &mut [u8], right: &[u8]) {
    with_type!(dtype, T => {
        let left: &mut [T] = bytemuck::cast_slice_mut(left);
        let right: &[T] = bytemuck::cast_slice(right);
        vectorised(#[inline(always)] || add_to(left, right));
    })
}

/// Computes `sum = part ∘ sum`, element by element: the part that arrived comes before this rank's.
///
/// Callers must first widen half-precision sums (see [`widen`]), or each call rounds. A mean is a
/// sum until [`divide`].
pub(crate) fn accumulate(dtype: DType, op: ReduceOp, sum: &mut [u8], part: &[u8]) {
    let op = op.before_division();
    with_type!(dtype, T => with_op!(op, T, 1, (combine, _finish) => {
        let sum: &mut [T] = bytemuck::cast_slice_mut(sum);
        let part: &[T] = bytemuck::cast_slice(part);
        vectorised(#[inline(always)] || {
            for (s, p) in sum.iter_mut().zip(part) {
                *s = T::narrow(combine(p.widen(), s.widen()));
            }
        });
    }))
}

/// Divides sums by the number of ranks.
pub(crate) fn divide(dtype: DType, sums: &mut [u8], ranks: usize) {
    with_type!(dtype, T => {
        let sums: &mut [T] = bytemuck::cast_slice_mut(sums);
        vectorised(#[inline(always)] || {
            for sum in sums {
                *sum = T::narrow(T::divide(sum.widen(), ranks));
            }
        });
    })
}

/// Half-precision elements as `f32`; `None` for every other type.
pub(crate) fn widen(dtype: DType, data: &[u8]) -> Option<Vec<f32>> {
    match dtype {
        DType::F16 => Some(
            bytemuck::cast_slice::<_, f16>(data)
                .iter()
                .map(|x| x.to_f32())
                .collect(),
        ),
        DType::BF16 => Some(
            bytemuck::cast_slice::<_, bf16>(data)
                .iter()
                .map(|x| x.to_f32())
                .collect(),
        ),
        _ => None,
    }
}

/// Rounds `f32` sums into half-precision `data`; does nothing for other types.
pub(crate) fn narrow(dtype: DType, sums: &[f32], data: &mut [u8]) {
    match dtype {
        DType::F16 => {
            for (to, from) in bytemuck::cast_slice_mut(data).iter_mut().zip(sums) {
                *to = f16::from_f32(*from);
            }
        }
        DType::BF16 => {
            for (to, from) in bytemuck::cast_slice_mut(data).iter_mut().zip(sums) {
                *to = bf16::from_f32(*from);
            }
        }
        _ => {}
    }
}

/// Runs `body`, which must be inlined, compiled for the widest vectors of this CPU.
#[inline(always)]
pub(crate) fn vectorised(body: impl FnOnce()) {
    pulp::Arch::new().dispatch(body);
}

#[inline(always)]
fn both<T: Number>(
    a: &mut [T],
    b: &mut [T],
    combine: impl Fn(T::Sum, T::Sum) -> T::Sum,
    finish: impl Fn(T::Sum) -> T::Sum,
) {
    for (a, b) in a.iter_mut().zip(b) {
        let result = T::narrow(finish(combine(a.widen(), b.widen())));
        *a = result;
        *b = result;
    }
}

#[inline(always)]
fn every<T: Number>(
    parts: &mut [&mut [T]],
    combine: impl Fn(T::Sum, T::Sum) -> T::Sum,
    finish: impl Fn(T::Sum) -> T::Sum,
) {
    let len = parts.iter().map(|p| p.len()).min().unwrap_or(0);
    for start in (0..len).step_by(BLOCK) {
        let range = start..(start + BLOCK).min(len);
        let mut sums = [T::widen(T::zeroed()); BLOCK];
        let sums = &mut sums[..range.len()];
        let Some((first, others)) = parts.split_first_mut() else {
            return;
        };
        for (sum, x) in sums.iter_mut().zip(&first[range.clone()]) {
            *sum = x.widen();
        }
        for other in others.iter() {
            for (sum, x) in sums.iter_mut().zip(&other[range.clone()]) {
                *sum = combine(*sum, x.widen());
            }
        }
        for (sum, x) in sums.iter_mut().zip(&mut first[range.clone()]) {
            *sum = finish(*sum);
            *x = T::narrow(*sum);
        }
        for other in others {
            for (sum, x) in sums.iter().zip(&mut other[range.clone()]) {
                *x = T::narrow(*sum);
            }
        }
    }
}

#[inline(always)]
fn gather<T: Number>(
    parts: &[&[T]],
    out: &mut [T],
    combine: impl Fn(T::Sum, T::Sum) -> T::Sum,
    finish: impl Fn(T::Sum) -> T::Sum,
) {
    match parts {
        // Two parts need no extra pass.
        [a, b] => {
            for (out, (a, b)) in out.iter_mut().zip(a.iter().zip(*b)) {
                *out = T::narrow(finish(combine(a.widen(), b.widen())));
            }
        }
        [a, b, c] => {
            for (out, (a, (b, c))) in out.iter_mut().zip(a.iter().zip(b.iter().zip(*c))) {
                let sum = combine(combine(a.widen(), b.widen()), c.widen());
                *out = T::narrow(finish(sum));
            }
        }
        // Few elements need no cleared sums.
        [first, others @ ..] if out.len() < BLOCK / 8 => {
            for (index, out) in out.iter_mut().enumerate() {
                let mut sum = first[index].widen();
                for other in others {
                    sum = combine(sum, other[index].widen());
                }
                *out = T::narrow(finish(sum));
            }
        }
        [first, others @ ..] => {
            for (block, out) in out.chunks_mut(BLOCK).enumerate() {
                let range = block * BLOCK..block * BLOCK + out.len();
                let mut sums = [T::widen(T::zeroed()); BLOCK];
                let sums = &mut sums[..out.len()];
                for (sum, x) in sums.iter_mut().zip(&first[range.clone()]) {
                    *sum = x.widen();
                }
                for other in others {
                    for (sum, x) in sums.iter_mut().zip(&other[range.clone()]) {
                        *sum = combine(*sum, x.widen());
                    }
                }
                for (sum, out) in sums.iter().zip(out) {
                    *out = T::narrow(finish(*sum));
                }
            }
        }
        [] => {}
    }
}

#[inline(always)]
fn add_to<T: Number>(left: &mut [T], right: &[T]) {
    for (left, right) in left.iter_mut().zip(right) {
        *left = T::narrow(T::add(left.widen(), right.widen()));
    }
}

#[inline(always)]
fn ordered<T: Number>(parts: &[&[T]], additions: &[usize], divisor: Option<usize>, out: &mut [T]) {
    let mut held: Vec<[T; BLOCK]> = Vec::new();
    for (block, out) in out.chunks_mut(BLOCK).enumerate() {
        let range = block * BLOCK..block * BLOCK + out.len();
        let len = out.len();
        let mut top = 0;
        for (part, additions) in parts.iter().zip(additions) {
            if held.len() == top {
                held.push([T::zeroed(); BLOCK]);
            }
            held[top][..len].copy_from_slice(&part[range.clone()]);
            top += 1;
            for _ in 0..*additions {
                let (left, right) = held.split_at_mut(top - 1);
                if let ([.., left], [right, ..]) = (left, right) {
                    add_to(&mut left[..len], &right[..len]);
                    top -= 1;
                }
            }
        }
        debug_assert_eq!(top, 1);
        let Some(sum) = held.first() else {
            return;
        };
        match divisor {
            None => out.copy_from_slice(&sum[..len]),
            Some(by) => {
                for (out, sum) in out.iter_mut().zip(sum) {
                    *out = T::narrow(T::divide(sum.widen(), by));
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn three_parts_agree_with_the_sequential_sum_beyond_a_block() {
        let make =
            |rank: usize| -> Vec<f32> { (0..1300).map(|i| (i * rank) as f32 * 0.1).collect() };
        let mut parts = [make(1), make(2), make(3)];
        let expected: Vec<f32> = (0..1300)
            .map(|i| (parts[0][i] + parts[1][i] + parts[2][i]) / 3.0)
            .collect();
        let mut bytes: Vec<&mut [u8]> = parts
            .iter_mut()
            .map(|p| bytemuck::cast_slice_mut(p))
            .collect();
        all(DType::F32, ReduceOp::Mean, &mut bytes);
        assert!(parts.iter().all(|p| *p == expected));
    }

    #[test]
    fn any_number_of_parts_is_added_in_order() {
        for (count, len) in (1..=5).flat_map(|count| [(count, 1300), (count, 7)]) {
            let part = |rank: usize| (0..len).map(move |i| ((i * 31 + rank * 17) as f32).sin());
            let parts: Vec<Vec<f32>> = (0..count).map(|rank| part(rank).collect()).collect();
            let expected = (0..len).map(|i| parts.iter().map(|p| p[i]).reduce(|a, b| a + b));
            let views: Vec<&[u8]> = parts.iter().map(|p| bytemuck::cast_slice(p)).collect();
            let mut out = vec![0f32; len];
            let bytes = bytemuck::cast_slice_mut(&mut out);
            into(DType::F32, ReduceOp::Sum, &views, bytes);
            assert!(out.into_iter().map(Some).eq(expected), "{count}");
        }
    }

    #[test]
    fn a_tree_adds_in_its_order_and_rounds_every_sum() {
        // ((a + b) + (c + d)) + e
        let additions = [0, 1, 0, 2, 1];
        let part = |k: usize| (0..1300).map(move |i| ((i * 31 + k * 17) as f32).sin());
        let parts: Vec<Vec<f32>> = (0..5).map(|k| part(k).collect()).collect();
        let views: Vec<&[u8]> = parts.iter().map(|p| bytemuck::cast_slice(p)).collect();
        let mut out = vec![0f32; 1300];
        let bytes = bytemuck::cast_slice_mut(&mut out);
        tree(DType::F32, (&views, &additions), Some(5), bytes);
        for (i, out) in out.into_iter().enumerate() {
            let [a, b, c, d, e] = [0, 1, 2, 3, 4].map(|k| parts[k][i]);
            assert_eq!(out, (((a + b) + (c + d)) + e) / 5.0);
        }
        // In f16, 2048 + 1 is 2048.
        let parts = [2048.0, 1.0, 1.0].map(|x| [f16::from_f32(x)]);
        let views: Vec<&[u8]> = parts.iter().map(|p| bytemuck::cast_slice(p)).collect();
        let mut out = [f16::ZERO];
        let bytes = bytemuck::cast_slice_mut(&mut out);
        tree(DType::F16, (&views, &[0, 1, 1]), None, bytes);
        assert_eq!(out[0], f16::from_f32(2048.0));
    }

    #[test]
    fn half_precision_sums_are_rounded_once() {
        // 2048 + 1 + 1 in f16 steps loses both ones; in f32 it does not.
        let parts = [2048.0, 1.0, 1.0].map(|x| [f16::from_f32(x)]);
        let views: Vec<&[u8]> = parts.iter().map(|p| bytemuck::cast_slice(p)).collect();
        let mut out = [f16::ZERO];
        into(
            DType::F16,
            ReduceOp::Sum,
            &views,
            bytemuck::cast_slice_mut(&mut out),
        );
        assert_eq!(out[0], f16::from_f32(2050.0));
    }

    #[test]
    fn what_is_no_number_is_least_and_most() {
        for (a, b) in [(f32::NAN, 1.0), (1.0, f32::NAN)] {
            for op in [ReduceOp::Min, ReduceOp::Max] {
                let mut sum = [a];
                let part = bytemuck::bytes_of(&b);
                accumulate(DType::F32, op, bytemuck::bytes_of_mut(&mut sum), part);
                assert!(sum[0].is_nan(), "{a} {b}");
            }
        }
    }

    #[test]
    fn integer_sums_wrap() {
        let mut sum = [250u8, 1];
        accumulate(DType::U8, ReduceOp::Sum, &mut sum, &[10, 1]);
        assert_eq!(sum, [4, 2]);
    }
}
