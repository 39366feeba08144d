//! Collectives on registered buckets: no copy, two synchronisations.
//!
//! All-reduce: everybody enters; every rank takes its shard of all mappings, reduces it and writes
//! the result to all mappings; everybody leaves. There is no gather phase, no line is read twice,
//! and the result is bit-identical on all ranks.
//!
//! Where the ranks of one host are some of many, sums come and go on the way: [`Opened`] gives what
//! is done here in pieces.

use std::ops::Range;

use super::{Announcement, Entered, Mapping, Region, SharedMemory, Stop, Watch};
use crate::element::{DType, ReduceOp};
use crate::reduce;
use crate::shard::summands;

impl SharedMemory {
    /// Reduces this rank's `shard`, in bytes, of the bucket, on all ranks; the other ranks do the
    /// same with theirs.
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
        descriptor: Announcement,
        bucket: &mut Region,
        owned: impl Fn(usize) -> Range<usize>,
        watch: &Watch,
    ) -> Result<(), Stop> {
        self.enter(descriptor, watch)?;
        let mappings = bucket.mappings.clone();
        for peer in self.peers() {
            let range = owned(peer);
            // SAFETY: between entry and the end every rank only reads what it owns of its own
            // mapping, and writes only the ranges that it does not own.
            let from = unsafe { slice(&mappings[peer], &range) };
            bucket.bytes_mut()[range].copy_from_slice(from);
        }
        self.finish(watch)
    }

    /// A bucket whose ranges the ranks have divided among themselves, for as long as all of them
    /// are in the collective that they have `entered`, until [`finish`](Self::finish).
    pub(crate) fn open<'a>(
        &'a self,
        entered: Entered,
        bucket: &'a mut Region,
        results: Results,
    ) -> Opened<'a> {
        let Entered(epoch) = entered;
        assert!(epoch == self.entered && self.owns(bucket));
        Opened { bucket, results }
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
        let mappings = &bucket.mappings;
        summands(self.rank, self.size())
            // SAFETY: exclusive as the caller promises.
            .map(|rank| unsafe { slice_mut(&mappings[rank], range) })
            .collect()
    }
}

/// Whose the results are.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum Results {
    /// Those of all ranks.
    Everybodys,
    /// Those of the rank that computes them.
    Owners,
}

/// See [`SharedMemory::open`]. A rank names ranges, in bytes, that are its own in this collective,
/// whichever rank's mapping they are in, and no others.
pub(crate) struct Opened<'a> {
    bucket: &'a mut Region,
    results: Results,
}

impl Opened<'_> {
    /// Bytes of this rank's mapping.
    pub(crate) fn bytes(&self, range: Range<usize>) -> &[u8] {
        // SAFETY: the other ranks don't write to a range of this rank's.
        unsafe { slice(self.bucket.own(), &range) }
    }

    /// The same, to be written to.
    pub(crate) fn bytes_mut(&mut self, range: Range<usize>) -> &mut [u8] {
        // SAFETY: the other ranks don't use a range of this rank's, and this is the only view of it
        // here.
        unsafe { slice_mut(self.bucket.own(), &range) }
    }

    /// Bytes of a rank's mapping.
    pub(crate) fn of(&self, range: &Range<usize>, rank: usize) -> &[u8] {
        // SAFETY: as in `bytes`; what other ranks have brought there lies still.
        unsafe { slice(&self.bucket.mappings[rank], range) }
    }

    /// Bytes of some ranks' mappings.
    pub(crate) fn parts(&self, range: &Range<usize>, ranks: &[usize]) -> Vec<&[u8]> {
        ranks.iter().map(|rank| self.of(range, *rank)).collect()
    }

    /// Gives all ranks what this rank's mapping has in that range, if the results are everybody's.
    pub(crate) fn hand_out(&mut self, range: Range<usize>) {
        if self.results == Results::Owners || range.is_empty() {
            return;
        }
        let result = self.bytes(range.clone());
        let mappings = self.bucket.mappings.iter().enumerate();
        for (_, theirs) in mappings.filter(|(rank, _)| *rank != self.bucket.rank) {
            // SAFETY: nobody else uses the range of their mapping; mappings don't overlap.
            unsafe { slice_mut(theirs, &range) }.copy_from_slice(result);
        }
    }
}

/// # Safety
/// Nobody may write to the range while the slice lives.
unsafe fn slice<'a>(mapping: &'a Mapping, range: &Range<usize>) -> &'a [u8] {
    assert!(range.start <= range.end && range.end <= mapping.len());
    // SAFETY: in bounds; unchanged as the caller promises.
    unsafe { std::slice::from_raw_parts(mapping.as_ptr().add(range.start), range.len()) }
}

/// # Safety
/// Nobody else may use the range while the slice lives.
#[expect(
    clippy::mut_from_ref,
    reason = "a mapping stands for memory that ranks divide among themselves"
)]
unsafe fn slice_mut<'a>(mapping: &'a Mapping, range: &Range<usize>) -> &'a mut [u8] {
    assert!(range.start <= range.end && range.end <= mapping.len());
    // SAFETY: in bounds; exclusive as the caller promises.
    unsafe { std::slice::from_raw_parts_mut(mapping.as_ptr().add(range.start), range.len()) }
}
