//! Small messages: each rank writes into its own slot, enters, and reads all slots. One hop, and no
//! barrier after it: slots alternate, because a rank can be at most one collective ahead.

use super::{Announcement, SMALL, SharedMemory, Stop, Watch};
use crate::element::{DType, ReduceOp};
use crate::reduce;
use crate::shard::{pieces, summands};

impl SharedMemory {
    /// Reduces at most [`SMALL`] bytes of private memory over all ranks.
    pub(crate) fn all_reduce_small(
        &mut self,
        descriptor: Announcement,
        data: &mut [u8],
        (dtype, op): (DType, ReduceOp),
        watch: &Watch,
    ) -> Result<(), Stop> {
        self.offer(descriptor, data, watch)?;
        let (size, element) = (self.size(), dtype.size());
        let (whole, elements) = (data.len(), data.len() / element);
        for (owner, piece) in pieces(0..elements, elements, size) {
            let bytes = piece.start * element..piece.end * element;
            let parts: Vec<&[u8]> = summands(owner, size)
                .map(|rank| &self.offered(rank, whole)[bytes.clone()])
                .collect();
            reduce::into(dtype, op, &parts, &mut data[bytes]);
        }
        Ok(())
    }

    /// The `payload` of every rank, in rank order; all of the same length, at most [`SMALL`] bytes.
    pub(super) fn exchange(
        &mut self,
        descriptor: Announcement,
        payload: &[u8],
        watch: &Watch,
    ) -> Result<Vec<Vec<u8>>, Stop> {
        self.offer(descriptor, payload, watch)?;
        Ok((0..self.size())
            .map(|rank| self.offered(rank, payload.len()).to_vec())
            .collect())
    }

    fn offer(&mut self, descriptor: Announcement, data: &[u8], watch: &Watch) -> Result<(), Stop> {
        assert!(data.len() <= SMALL);
        let slot = self.arenas[self.rank].small(self.entered.wrapping_add(1));
        // SAFETY: the slot has SMALL bytes. Peers last read it during the collective before the
        // previous one: to enter the previous one they had to leave that.
        unsafe { std::ptr::copy_nonoverlapping(data.as_ptr(), slot, data.len()) };
        self.enter(descriptor, watch).map(drop)
    }

    fn offered(&self, rank: usize, len: usize) -> &[u8] {
        assert!(len <= SMALL);
        // SAFETY: the slot has SMALL bytes. Its owner wrote them before it entered, and does not
        // write them again before this rank has entered the next collective.
        unsafe { std::slice::from_raw_parts(self.arenas[rank].small(self.entered), len) }
    }
}
