//! Moves private memory through a bucket that the ranks of a node share.

use std::ops::Range;

use crate::collective::{Descriptor, Kind};
use crate::element::DType;
use crate::reduce;

/// The plan of the stage: in every round it has a slot for each rank's shard.
pub(super) struct Staging<'a> {
    pub what: &'a Descriptor,
    /// Type of the elements in the stage.
    pub dtype: DType,
    /// The shards, in elements.
    pub shards: Vec<Range<usize>>,
    /// Bytes of a slot.
    pub slot: usize,
    /// This rank.
    pub rank: usize,
}

impl Staging<'_> {
    pub(super) fn rounds(&self) -> usize {
        let longest = self.shards.iter().map(Range::len).max().unwrap_or(0);
        longest.div_ceil(self.slot / self.dtype.size())
    }

    /// The elements of a rank's shard in a round, in bytes of the private memory.
    fn piece(&self, round: usize, rank: usize) -> Range<usize> {
        let (shard, count) = (&self.shards[rank], self.slot / self.dtype.size());
        let start = (shard.start + round * count).min(shard.end);
        let (end, element) = ((start + count).min(shard.end), self.what.dtype.size());
        start * element..end * element
    }

    /// Their place on the stage, in bytes.
    pub(super) fn place(&self, round: usize, rank: usize) -> Range<usize> {
        let start = rank * self.slot;
        let elements = self.piece(round, rank).len() / self.what.dtype.size();
        start..start + elements * self.dtype.size()
    }

    pub(super) fn fill(&self, round: usize, data: &[u8], stage: &mut [u8]) {
        let gathers = self.what.kind == Kind::AllGather;
        let ranks = (0..self.shards.len()).filter(|rank| !gathers || *rank == self.rank);
        for rank in ranks {
            let from = &data[self.piece(round, rank)];
            let to = &mut stage[self.place(round, rank)];
            if to.len() == from.len() {
                to.copy_from_slice(from);
            } else if let Some(wide) = reduce::widen(self.what.dtype, from) {
                to.copy_from_slice(bytemuck::cast_slice(&wide));
            }
        }
    }

    pub(super) fn take(&self, round: usize, stage: &[u8], data: &mut [u8]) {
        let ranks = (0..self.shards.len()).filter(|rank| match self.what.kind {
            Kind::ReduceScatter => *rank == self.rank,
            Kind::AllGather => *rank != self.rank,
            _ => true,
        });
        for rank in ranks {
            let from = &stage[self.place(round, rank)];
            let to = &mut data[self.piece(round, rank)];
            if from.len() == to.len() {
                to.copy_from_slice(from);
            } else {
                reduce::narrow(self.what.dtype, bytemuck::cast_slice(from), to);
            }
        }
    }
}
