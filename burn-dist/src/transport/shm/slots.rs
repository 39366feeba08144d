//! All-reduce of private memory: chunks go through a ring of slots in three overlapping stages.
//! Each rank copies in the slices that others own; the owner reduces its slice and writes the
//! result into every peer's slot; each rank copies the results out.

use std::ops::Range;

use super::arena::{SLOT, SLOTS};
use super::{Announcement, SharedMemory, Stop, Watch, slice_of};
use crate::element::{DType, ReduceOp};
use crate::reduce;
use crate::shard::{pieces, summands};

/// With two ranks a chunk of this size and its copy stay in the L2 cache. More ranks need larger
/// chunks, or synchronisation costs more than it saves.
const CHUNK_OF_TWO: usize = 128 * 1024;

// Three chunks are in flight at once; the fourth slot lets the fastest rank begin the next.
const _: () = assert!(SLOTS >= 4 && CHUNK_OF_TWO <= SLOT);

impl SharedMemory {
    /// Reduces private memory of any length over all ranks, in place.
    pub(crate) fn all_reduce_private(
        &mut self,
        descriptor: Announcement,
        data: &mut [u8],
        (dtype, op): (DType, ReduceOp),
        watch: &Watch,
    ) -> Result<(), Stop> {
        self.enter(descriptor, watch)?;
        let size = if self.size() == 2 { CHUNK_OF_TWO } else { SLOT };
        let count = data.len().div_ceil(size);
        let chunk = |index: usize| index * size..((index + 1) * size).min(data.len());
        let chunks: Vec<_> = (0..count).map(chunk).collect();
        for stage in 0..count + 2 {
            if let Some(range) = chunks.get(stage) {
                self.fill(stage, &data[range.clone()]);
            }
            if let Some((index, range)) =
                stage.checked_sub(1).and_then(|i| Some((i, chunks.get(i)?)))
            {
                self.reduce(index, data, range, (dtype, op), watch)?;
            }
            if let Some((index, range)) =
                stage.checked_sub(2).and_then(|i| Some((i, chunks.get(i)?)))
            {
                self.take(index, &mut data[range.clone()], watch)?;
            }
        }
        self.chunks = self.number(count);
        Ok(())
    }

    fn number(&self, index: usize) -> u32 {
        self.chunks.wrapping_add(index as u32)
    }

    fn fill(&mut self, index: usize, data: &[u8]) {
        let number = self.number(index);
        let slot = self.arenas[self.rank].slot(number);
        for peer in self.peers() {
            let slice = slice_of(data.len(), self.size(), peer);
            // SAFETY: a chunk has at most SLOT bytes. The slot is free: this rank has taken the
            // results of the previous chunk in it after every peer had posted that it was done.
            unsafe {
                std::ptr::copy_nonoverlapping(
                    data[slice.clone()].as_ptr(),
                    slot.add(slice.start),
                    slice.len(),
                );
            }
        }
        self.arenas[self.rank]
            .head()
            .filled
            .0
            .post(number.wrapping_add(1));
    }

    /// Reduces this rank's slice of `chunk`, a range of `data`.
    fn reduce(
        &mut self,
        index: usize,
        data: &mut [u8],
        chunk: &Range<usize>,
        (dtype, op): (DType, ReduceOp),
        watch: &Watch,
    ) -> Result<(), Stop> {
        let (number, size) = (self.number(index), self.size());
        for rank in self.peers() {
            let filled = &self.arenas[rank].head().filled.0;
            filled.wait(rank, number.wrapping_add(1), &self.eager, watch)?;
        }
        let slice = slice_of(chunk.len(), size, self.rank);
        let (element, elements) = (dtype.size(), data.len() / dtype.size());
        let slice = (chunk.start + slice.start) / element..(chunk.start + slice.end) / element;
        for (owner, piece) in pieces(slice, elements, size) {
            let piece = piece.start * element..piece.end * element;
            let mut mine = Some(&mut data[piece.clone()]);
            let part = |rank: usize| {
                let own = mine.take_if(|_| rank == self.rank);
                // SAFETY: within the slot. Its owner has posted that it is filled, and does not
                // touch this rank's slice before this rank has posted that it is reduced.
                own.unwrap_or_else(|| unsafe {
                    let start = self.arenas[rank]
                        .slot(number)
                        .add(piece.start - chunk.start);
                    std::slice::from_raw_parts_mut(start, piece.len())
                })
            };
            let mut parts: Vec<&mut [u8]> = summands(owner, size).map(part).collect();
            reduce::all(dtype, op, &mut parts);
        }
        self.arenas[self.rank]
            .head()
            .reduced
            .0
            .post(number.wrapping_add(1));
        Ok(())
    }

    fn take(&mut self, index: usize, data: &mut [u8], watch: &Watch) -> Result<(), Stop> {
        let number = self.number(index);
        let slot = self.arenas[self.rank].slot(number);
        for rank in self.peers() {
            let reduced = &self.arenas[rank].head().reduced.0;
            reduced.wait(rank, number.wrapping_add(1), &self.eager, watch)?;
            let slice = slice_of(data.len(), self.size(), rank);
            // SAFETY: within the slot; the peer has posted that its slice of it is written.
            let result = unsafe { std::slice::from_raw_parts(slot.add(slice.start), slice.len()) };
            data[slice].copy_from_slice(result);
        }
        Ok(())
    }
}
