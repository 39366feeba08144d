//! Small messages: everybody writes into its own slot, enters, and reads all slots. One hop, and
//! no barrier after it, because slots alternate: a rank can be at most one collective ahead.

use super::{Descriptor, SMALL, SharedMemory, Stop, Watch};
use crate::element::{DType, ReduceOp};
use crate::reduce;

impl SharedMemory {
    /// Reduces at most [`SMALL`] bytes of private memory over all ranks.
    pub(crate) fn all_reduce_small(
        &mut self,
        descriptor: Descriptor,
        data: &mut [u8],
        (dtype, op): (DType, ReduceOp),
        watch: &Watch,
    ) -> Result<(), Stop> {
        self.offer(descriptor, data, watch)?;
        let parts: Vec<&[u8]> = (0..self.size())
            .map(|rank| self.offered(rank, data.len()))
            .collect();
        reduce::into(dtype, op, &parts, data);
        Ok(())
    }

    /// Every rank's `payload`, in rank order; all of the same length, at most [`SMALL`] bytes.
    pub(super) fn exchange(
        &mut self,
        descriptor: Descriptor,
        payload: &[u8],
        watch: &Watch,
    ) -> Result<Vec<Vec<u8>>, Stop> {
        self.offer(descriptor, payload, watch)?;
        Ok((0..self.size())
            .map(|rank| self.offered(rank, payload.len()).to_vec())
            .collect())
    }

    fn offer(&mut self, descriptor: Descriptor, data: &[u8], watch: &Watch) -> Result<(), Stop> {
        assert!(data.len() <= SMALL);
        let slot = self.arenas[self.rank].small(self.entered.wrapping_add(1));
        // SAFETY: the slot has SMALL bytes. Peers read it during the collective before the last
        // one at the latest: to enter the last one they had to leave that.
        unsafe { std::ptr::copy_nonoverlapping(data.as_ptr(), slot, data.len()) };
        self.enter(descriptor, watch)
    }

    fn offered(&self, rank: usize, len: usize) -> &[u8] {
        assert!(len <= SMALL);
        // SAFETY: the slot has SMALL bytes, its owner wrote them before it entered, and does not
        // write them again before this rank has entered the next collective.
        unsafe { std::slice::from_raw_parts(self.arenas[rank].small(self.entered), len) }
    }
}
