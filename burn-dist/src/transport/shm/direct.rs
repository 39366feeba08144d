//! Collectives on registered buckets: no copy, two synchronisations.
//!
//! All-reduce: all ranks enter. Every rank reads its shard from all mappings, reduces it and writes
//! the result to all mappings. All ranks leave. There is no gather phase, no line is read twice,
//! and the result is bit-identical on all ranks.
//!
//! If the host's ranks are only some of all, sums arrive and leave on the way: [`Opened`] gives
//! access to the pieces.

use std::ops::Range;

use super::{AllEntered, Announcement, Mapping, Region, SharedMemory, Stop, Watch};
use crate::element::{DType, ReduceOp};
use crate::reduce;
use crate::shard::summands;

impl SharedMemory {
    /// Reduces this rank's `shard` of the bucket, in bytes, for all ranks; each rank does its own.
    pub(crate) fn reduce_shard(
        &mut self,
        descriptor: Announcement,
        bucket: &mut Region,
        shard: Range<usize>,
        (dtype, op): (DType, ReduceOp),
        watch: &Watch,
    ) -> Result<(), Stop> {
        self.enter(descriptor, watch)?;
        if !shard.is_empty() {
            // SAFETY: all ranks have entered this collective with this bucket, so each uses only
            // its own shard of the memory, and shards do not overlap.
            let mut parts = unsafe { self.parts(bucket, &shard) };
            reduce::all(dtype, op, &mut parts);
        }
        self.finish(watch)
    }

    /// Adds this rank's `shard` of the partial sums of all ranks, in bytes; each rank does its own.
    pub(crate) fn reduce_partial(
        &mut self,
        descriptor: Announcement,
        bucket: &mut Region,
        shard: Range<usize>,
        sums: &PartialSums<'_>,
        watch: &Watch,
    ) -> Result<(), Stop> {
        self.enter(descriptor, watch)?;
        let mut sum = [0; PIECE];
        let mut parts: Vec<&[u8]> = Vec::with_capacity(sums.places.len());
        for start in shard.clone().step_by(PIECE) {
            let piece = start..(start + PIECE).min(shard.end);
            let part = |(rank, place): &(usize, usize)| {
                let range = place + piece.start..place + piece.end;
                // SAFETY: all ranks have entered this collective with this bucket, so each uses
                // only its own shard of all partial sums. This rank writes to none of it while
                // `parts` lives.
                unsafe { slice(&bucket.mappings[*rank], &range) }
            };
            parts.clear();
            parts.extend(sums.places.iter().map(part));
            let sum = &mut sum[..piece.len()];
            (sums.add)(&parts, sum);
            for (rank, mapping) in bucket.mappings.iter().enumerate() {
                if rank == self.rank || sums.results == Results::Everybodys {
                    // SAFETY: as above; the parts of this piece are not read any more.
                    unsafe { slice_mut(mapping, &piece) }.copy_from_slice(sum);
                }
            }
        }
        self.finish(watch)
    }

    /// Copies to this rank the bytes `owned(peer)` of every peer.
    pub(crate) fn gather_slices(
        &mut self,
        descriptor: Announcement,
        bucket: &mut Region,
        owned: impl Fn(usize) -> Range<usize>,
        watch: &Watch,
    ) -> Result<(), Stop> {
        self.enter(descriptor, watch)?;
        let mappings = bucket.mappings.clone();
        for peer in self.peers() {
            let range = owned(peer);
            // SAFETY: between entry and the end every rank only reads the range that it owns in its
            // own mapping, and writes only ranges that it does not own.
            let from = unsafe { slice(&mappings[peer], &range) };
            bucket.bytes_mut()[range].copy_from_slice(from);
        }
        self.finish(watch)
    }

    /// Opens a bucket whose ranges the ranks have divided among themselves, while all of them are
    /// in the collective that they have `entered`, until [`finish`](Self::finish).
    pub(crate) fn open<'a>(
        &'a self,
        entered: AllEntered,
        bucket: &'a mut Region,
        results: Results,
    ) -> Opened<'a> {
        let AllEntered(epoch) = entered;
        assert!(epoch == self.entered && self.owns(bucket));
        Opened { bucket, results }
    }

    /// The same range in every rank's mapping of a bucket, in the order in which the ranks' parts
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
        let mappings = &bucket.mappings;
        summands(self.rank, self.size())
            // SAFETY: the caller promises exclusive access.
            .map(|rank| unsafe { slice_mut(&mappings[rank], range) })
            .collect()
    }
}

/// Bytes that are added at a time: the parts of a piece stay in the L1 cache.
const PIECE: usize = 4096;

/// Adds parts of equal length into the last argument.
pub(crate) type AddParts<'a> = dyn Fn(&[&[u8]], &mut [u8]) + 'a;

/// Partial sums in the buckets of all ranks.
pub(crate) struct PartialSums<'a> {
    /// Rank of each, and its first byte in that rank's bucket.
    pub places: &'a [(usize, usize)],
    /// Adds the same piece of all of them.
    pub add: &'a AddParts<'a>,
    /// The ranks that get the result, in place of the first one.
    pub results: Results,
}

/// The owners of the results.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum Results {
    /// All ranks get all results.
    Everybodys,
    /// The rank that computes a result keeps it.
    Owners,
}

/// An open bucket; see [`SharedMemory::open`]. A rank only names ranges, in bytes, that are its own
/// in this collective, in any rank's mapping.
pub(crate) struct Opened<'a> {
    bucket: &'a mut Region,
    results: Results,
}

impl Opened<'_> {
    /// Bytes of this rank's mapping.
    pub(crate) fn bytes(&self, range: Range<usize>) -> &[u8] {
        // SAFETY: the other ranks do not write to a range of this rank.
        unsafe { slice(self.bucket.own(), &range) }
    }

    /// Bytes of this rank's mapping, for writing.
    pub(crate) fn bytes_mut(&mut self, range: Range<usize>) -> &mut [u8] {
        // SAFETY: the other ranks do not use a range of this rank, and this is the only view of it
        // here.
        unsafe { slice_mut(self.bucket.own(), &range) }
    }

    /// Bytes of a rank's mapping.
    pub(crate) fn of(&self, range: &Range<usize>, rank: usize) -> &[u8] {
        // SAFETY: as in `bytes`; other ranks do not change their bytes in this range.
        unsafe { slice(&self.bucket.mappings[rank], range) }
    }

    /// Bytes of several ranks' mappings.
    pub(crate) fn parts(&self, range: &Range<usize>, ranks: &[usize]) -> Vec<&[u8]> {
        ranks.iter().map(|rank| self.of(range, *rank)).collect()
    }

    /// Copies this range of this rank's mapping to all ranks, if the results are everybody's.
    pub(crate) fn hand_out(&mut self, range: Range<usize>) {
        if self.results == Results::Owners || range.is_empty() {
            return;
        }
        let result = self.bytes(range.clone());
        let mappings = self.bucket.mappings.iter().enumerate();
        for (_, theirs) in mappings.filter(|(rank, _)| *rank != self.bucket.rank) {
            // SAFETY: nobody else uses the range of their mappings, and mappings do not overlap.
            unsafe { slice_mut(theirs, &range) }.copy_from_slice(result);
        }
    }
}

/// # Safety
/// Nobody may write to the range while the slice lives.
unsafe fn slice<'a>(mapping: &'a Mapping, range: &Range<usize>) -> &'a [u8] {
    assert!(range.start <= range.end && range.end <= mapping.len());
    // SAFETY: in bounds; the caller promises that it does not change.
    unsafe { std::slice::from_raw_parts(mapping.as_ptr().add(range.start), range.len()) }
}

/// # Safety
/// Nobody else may use the range while the slice lives.
#[expect(
    clippy::mut_from_ref,
    reason = "a mapping is memory that ranks share out among themselves"
)]
unsafe fn slice_mut<'a>(mapping: &'a Mapping, range: &Range<usize>) -> &'a mut [u8] {
    assert!(range.start <= range.end && range.end <= mapping.len());
    // SAFETY: in bounds; the caller promises exclusive access.
    unsafe { std::slice::from_raw_parts_mut(mapping.as_ptr().add(range.start), range.len()) }
}
