//! Memory of results: buffers that go back to a pool when the last tensor that owns them is gone.
//!
//! A training step makes tensors of the same sizes again and again. Fresh memory from the system
//! costs a page fault per 4 KiB and is zeroed. The pool's memory is ready, and large buffers lie in
//! huge pages (see `pages`).

use std::mem::MaybeUninit;

use burn_std::{AccessError, AccessPolicy, AllocationController, AllocationProperty, Bytes};
use parking_lot::Mutex;

use crate::cpu::pages::Buffer;

/// Smaller results come from the system: its allocator has them at hand.
const POOLED: usize = 4096;

/// Buffers without an owner, and the maximum memory that owned ones had.
#[derive(Debug)]
struct Pool {
    free: Vec<Buffer>,
    free_elements: usize,
    owned_elements: usize,
    most_owned: usize,
}

static POOL: Mutex<Pool> = Mutex::new(Pool {
    free: Vec::new(),
    free_elements: 0,
    owned_elements: 0,
    most_owned: 0,
});

fn with_pool<R>(action: impl FnOnce(&mut Pool) -> R) -> R {
    action(&mut POOL.lock())
}

impl Pool {
    /// Takes the smallest sufficient free buffer of less than twice the length.
    fn take(&mut self, length: usize) -> Option<Buffer> {
        let fits = |buffer: &Buffer| buffer.length >= length && buffer.length / 2 <= length;
        let candidates = self
            .free
            .iter()
            .enumerate()
            .filter(|(_, buffer)| fits(buffer));
        // The newest of equally good buffers, because it may still be in the cache.
        let (index, _) = candidates.rev().min_by_key(|(_, buffer)| buffer.length)?;
        let buffer = self.free.remove(index);
        self.free_elements -= buffer.length;
        Some(buffer)
    }

    fn lend(&mut self, length: usize) {
        self.owned_elements += length;
        self.most_owned = self.most_owned.max(self.owned_elements);
    }

    /// Keeps a buffer, and returns memory to the system beyond the maximum ever owned at once.
    fn keep(&mut self, buffer: Buffer) -> Vec<Buffer> {
        self.owned_elements -= buffer.length;
        self.free_elements += buffer.length;
        self.free.push(buffer);
        let mut surplus = Vec::new();
        // A quarter more, because the order of sizes varies from step to step.
        let most = self.most_owned + self.most_owned / 4;
        while self.free_elements + self.owned_elements > most && !self.free.is_empty() {
            let oldest = self.free.remove(0);
            self.free_elements -= oldest.length;
            surplus.push(oldest);
        }
        surplus
    }
}

/// A buffer of the pool as the memory of a tensor.
struct Pooled {
    buffer: Option<Buffer>,
    bytes: usize,
}

impl Drop for Pooled {
    fn drop(&mut self) {
        if let Some(buffer) = self.buffer.take() {
            // Dropped here, outside the lock.
            let _surplus = with_pool(|pool| pool.keep(buffer));
        }
    }
}

impl AllocationController for Pooled {
    fn alloc_align(&self) -> usize {
        align_of::<f32>()
    }

    fn property(&self) -> AllocationProperty {
        AllocationProperty::Other
    }

    unsafe fn memory_mut(
        &mut self,
        _policy: AccessPolicy,
    ) -> Result<&mut [MaybeUninit<u8>], AccessError> {
        let Some(buffer) = &mut self.buffer else {
            return Ok(&mut []);
        };
        let start = buffer.pointer().cast::<MaybeUninit<u8>>();
        // SAFETY: the buffer has at least `bytes` bytes, which are borrowed exclusively; the caller
        // writes only initialised ones.
        Ok(unsafe { std::slice::from_raw_parts_mut(start, self.bytes) })
    }

    fn memory(&self, _policy: AccessPolicy) -> Result<&[MaybeUninit<u8>], AccessError> {
        let Some(buffer) = &self.buffer else {
            return Ok(&[]);
        };
        let start = buffer.pointer().cast::<MaybeUninit<u8>>().cast_const();
        // SAFETY: the buffer has at least `bytes` bytes, and nobody can write to them while `self`
        // is borrowed.
        Ok(unsafe { std::slice::from_raw_parts(start, self.bytes) })
    }
}

/// Allocates memory for `length` numbers with arbitrary values.
pub(super) fn numbers(length: usize) -> Bytes {
    if length < POOLED {
        return Bytes::from_elems(vec![0f32; length]);
    }
    let found = with_pool(|pool| pool.take(length));
    let buffer = found.unwrap_or_else(|| Buffer::new(length));
    with_pool(|pool| pool.lend(buffer.length));
    let bytes = length * size_of::<f32>();
    let controller = Box::new(Pooled {
        buffer: Some(buffer),
        bytes,
    });
    // SAFETY: a buffer is initialised from its allocation on.
    unsafe { Bytes::from_controller(controller, bytes) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pool() -> Pool {
        Pool {
            free: Vec::new(),
            free_elements: 0,
            owned_elements: 0,
            most_owned: 0,
        }
    }

    #[test]
    fn buffers_come_back_for_like_sizes_only() {
        let mut pool = pool();
        let buffer = Buffer::new(10_000);
        pool.lend(buffer.length);
        let start = buffer.pointer();
        assert!(pool.keep(buffer).is_empty());
        assert!(pool.take(20_000).is_none());
        assert!(pool.take(4_000).is_none());
        assert_eq!(pool.take(9_000).map(|buffer| buffer.pointer()), Some(start));
        assert!(pool.take(9_000).is_none());
    }

    #[test]
    fn no_more_is_kept_than_was_in_use_at_once() {
        let mut pool = pool();
        // One after another, never two at once: each makes the previous one superfluous.
        for length in [10_000, 30_000, 100_000] {
            assert!(pool.take(length).is_none());
            let buffer = Buffer::new(length);
            pool.lend(buffer.length);
            pool.keep(buffer);
            assert!(pool.free_elements <= pool.most_owned * 5 / 4);
        }
        assert_eq!(pool.free.len(), 1);
        assert_eq!(pool.owned_elements, 0);
    }

    #[test]
    fn numbers_can_be_written_and_read() {
        for length in [10, 5_000] {
            let mut bytes = numbers(length);
            assert_eq!(bytes.len(), 4 * length);
            bytes.fill(7);
            assert!(bytes.iter().all(|&byte| byte == 7));
            assert_eq!(bytes.clone().len(), bytes.len());
        }
    }
}
