//! Collectives on registered buckets: no copy, two synchronisations.
//!
//! All-reduce: everybody enters; every rank takes its shard of all mappings, reduces it and writes
//! the result to all mappings; everybody leaves. There is no gather phase, no line is read twice,
//! and the result is bit-identical on all ranks.

use std::ops::Range;

use super::{Descriptor, Region, SharedMemory, Stop, Watch};
use crate::element::{DType, ReduceOp};
use crate::reduce;
use crate::shard::summands;

impl SharedMemory {
    /// Reduces this rank's `shard`, in bytes, of the bucket, on all ranks; the other ranks do the
    /// same with theirs.
    pub(crate) fn reduce_shard(
        &mut self,
        descriptor: Descriptor,
        bucket: &mut Region,
        shard: Range<usize>,
        (dtype, op): (DType, ReduceOp),
        watch: &Watch,
    ) -> Result<(), Stop> {
        self.enter(descriptor, watch)?;
        if !shard.is_empty() {
            // SAFETY: all ranks have entered this collective with this bucket, so none uses its
            // memory but for its own shard of it, and shards don't overlap.
            let mut parts = unsafe { self.parts(bucket, &shard) };
            reduce::all(dtype, op, &mut parts);
        }
        self.finish(watch)
    }

    /// Copies to this rank, for every peer, the range of bytes that `owned` says is the peer's.
    pub(crate) fn gather_slices(
        &mut self,
        descriptor: Descriptor,
        bucket: &mut Region,
        owned: impl Fn(usize) -> Range<usize>,
        watch: &Watch,
    ) -> Result<(), Stop> {
        self.enter(descriptor, watch)?;
        for peer in self.peers() {
            let range = owned(peer);
            let theirs = &bucket.mappings[peer];
            assert!(range.end <= theirs.len());
            // SAFETY: in bounds; between entry and the end every rank only reads what it owns of
            // its own mapping, and writes only the ranges that it does not own.
            let from = unsafe {
                std::slice::from_raw_parts(theirs.as_ptr().add(range.start), range.len())
            };
            bucket.bytes_mut()[range].copy_from_slice(from);
        }
        self.finish(watch)
    }

    /// The same range of every rank's mapping of a bucket, in the order in which the ranks' parts
    /// of this rank's shard are added.
    ///
    /// # Safety
    /// No other rank, and nobody else in this process, may use this range of any of the mappings
    /// while the slices live.
    unsafe fn parts<'a>(
        &'a self,
        bucket: &'a mut Region,
        range: &Range<usize>,
    ) -> Vec<&'a mut [u8]> {
        let slice = |mapping: &super::Mapping| {
            assert!(range.start <= range.end && range.end <= mapping.len());
            // SAFETY: in bounds; exclusive as the caller promises.
            unsafe {
                std::slice::from_raw_parts_mut(mapping.as_ptr().add(range.start), range.len())
            }
        };
        let mappings = &bucket.mappings;
        summands(self.rank, self.size())
            .map(|rank| slice(&mappings[rank]))
            .collect()
    }
}
