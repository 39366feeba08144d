//! The elements that a node's ranks add to the ring of nodes, and their order.

use std::ops::Range;

use crate::buffer::Buffer;
use crate::collective::ring::{Contribution, Reduction, SEGMENT, Visit};
use crate::element::{DType, ReduceOp};
use crate::reduce;
use crate::shard::summands;
use crate::transport::shm::Opened;

/// The order in which the elements of all ranks are added.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Order {
    /// The order of the ring through all ranks, which visits the ranks of a node one after the
    /// other.
    Ring,
    /// The ranks of a node first.
    NodeFirst,
}

/// The ranks whose elements a sum gets when it visits their node, by place, in order.
pub(super) struct Parts {
    order: Order,
    first: Vec<usize>,
    middle: Vec<usize>,
    last: Vec<usize>,
}

impl Parts {
    /// Parts for the ring of the ranks in place `place` of `places`.
    pub(super) fn new(order: Order, place: usize, places: usize) -> Self {
        let all: Vec<usize> = match order {
            Order::Ring => (0..places).collect(),
            Order::NodeFirst => summands(place, places).collect(),
        };
        let begins_where_it_ends = order == Order::Ring && place + 1 < places;
        let (first, last) = match begins_where_it_ends {
            true => ((place + 1..places).collect(), (0..=place).collect()),
            false => (all.clone(), all.clone()),
        };
        Self {
            order,
            first,
            middle: all,
            last,
        }
    }

    fn at(&self, visit: Visit) -> &[usize] {
        match visit {
            Visit::First => &self.first,
            Visit::Middle => &self.middle,
            Visit::Last => &self.last,
        }
    }
}

/// The elements of a node's ranks in a bucket.
pub(super) struct Share<'a> {
    bucket: Opened<'a>,
    parts: Parts,
    dtype: DType,
    op: ReduceOp,
    /// The beginning of a sum: the bytes computed last, and the end of the rest.
    head: Head,
    /// A piece of a sum.
    sum: Buffer,
}

struct Head {
    piece: Buffer,
    /// The computed bytes.
    made: Range<usize>,
    end: usize,
}

impl<'a> Share<'a> {
    pub(super) fn new(bucket: Opened<'a>, parts: Parts, (dtype, op): (DType, ReduceOp)) -> Self {
        Self {
            bucket,
            parts,
            dtype,
            op: op.before_division(),
            head: Head {
                piece: Buffer::zeroed(DType::U8, 0),
                made: 0..0,
                end: 0,
            },
            sum: Buffer::zeroed(DType::U8, 0),
        }
    }

    /// Computes the sum for the bytes `place` in `self.sum`, after `part` if there is one.
    fn add_up(&mut self, place: &Range<usize>, part: Option<&[u8]>, visit: Visit) {
        if self.sum.len() < place.len() {
            self.sum = Buffer::recycled(DType::U8, place.len());
        }
        let sum = &mut self.sum.bytes_mut()[..place.len()];
        let own = self.bucket.parts(place, self.parts.at(visit));
        let one_by_one = self.parts.order == Order::Ring;
        let before = part.filter(|_| one_by_one);
        let parts: Vec<&[u8]> = before.into_iter().chain(own).collect();
        reduce::into(self.dtype, self.op, &parts, sum);
        if let Some(part) = part.filter(|_| !one_by_one) {
            reduce::accumulate(self.dtype, self.op, sum, part);
        }
    }
}

impl Contribution for Share<'_> {
    fn bytes(&self, place: Range<usize>) -> &[u8] {
        self.bucket.bytes(place)
    }

    fn bytes_mut(&mut self, place: Range<usize>) -> &mut [u8] {
        self.bucket.bytes_mut(place)
    }

    fn begins_where_it_ends(&self) -> bool {
        self.parts.first.len() < self.parts.middle.len()
    }

    fn begin(&mut self, place: Range<usize>) {
        self.head = Head {
            piece: Buffer::recycled(DType::U8, place.len().min(SEGMENT)),
            made: place.start..place.start,
            end: place.end,
        };
    }

    fn head(&mut self, place: Range<usize>) -> &[u8] {
        let head = &mut self.head;
        if place.start >= head.made.end {
            // Whole elements; some may have been sent in part.
            let start = head.made.end;
            head.made = start..(start + SEGMENT).min(head.end);
            let own = self.bucket.parts(&head.made, self.parts.at(Visit::First));
            let piece = &mut head.piece.bytes_mut()[..head.made.len()];
            reduce::into(self.dtype, self.op, &own, piece);
        }
        let end = place.end.min(head.made.end);
        &head.piece.bytes()[place.start - head.made.start..end - head.made.start]
    }

    fn share(&mut self, place: Range<usize>, visit: Visit) -> &[u8] {
        self.add_up(&place, None, visit);
        &self.sum.bytes()[..place.len()]
    }

    fn add(&mut self, place: Range<usize>, part: &[u8], visit: Visit, _: Reduction) {
        self.add_up(&place, Some(part), visit);
        let sum = &self.sum.bytes()[..place.len()];
        self.bucket.bytes_mut(place).copy_from_slice(sum);
    }

    fn hand_out(&mut self, place: Range<usize>) {
        self.bucket.hand_out(place);
    }

    fn summands(&self) -> usize {
        match self.parts.order {
            Order::Ring => self.parts.middle.len(),
            Order::NodeFirst => 1,
        }
    }

    fn summand(&mut self, index: usize, place: Range<usize>) -> &[u8] {
        match self.parts.order {
            Order::Ring => self.bucket.of(&place, index),
            Order::NodeFirst => self.share(place, Visit::Middle),
        }
    }

    fn summands_at(&self, visit: Visit) -> &[usize] {
        match self.parts.order {
            Order::Ring => self.parts.at(visit),
            Order::NodeFirst => &[0],
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sum_gets_every_part_once() {
        for order in [Order::Ring, Order::NodeFirst] {
            for (place, places) in [(0, 2), (1, 2), (0, 5), (2, 5), (4, 5)] {
                let parts = Parts::new(order, place, places);
                let twice = parts.first.len() < places;
                assert_eq!(twice, order == Order::Ring && place + 1 < places);
                let mut own = parts.last.clone();
                if twice {
                    own.extend(&parts.first);
                }
                for mut all in [own, parts.middle] {
                    all.sort_unstable();
                    assert!(all.into_iter().eq(0..places));
                }
            }
        }
    }
}
