//! A byte stream from one rank to another through shared memory: a ring that one side writes and
//! the other reads, with two positions that only grow.

use std::sync::atomic::Ordering;

use super::arena::{Arena, STREAM};

/// Writes the part of `bytes` that fits into the stream of `from` (this rank's arena) to rank `to`.
pub(super) fn write(from: &Arena, to: usize, bytes: &[u8]) -> usize {
    let (head, ring) = from.stream(to);
    let written = head.written.0.load(Ordering::Relaxed);
    let used = written.wrapping_sub(head.read.0.load(Ordering::Acquire));
    // If a peer moved its position beyond ours, `used` would be huge, and nothing would fit.
    let count = STREAM
        .saturating_sub(usize::try_from(used).unwrap_or(STREAM))
        .min(bytes.len());
    let at = written as usize % STREAM;
    let first = count.min(STREAM - at);
    // SAFETY: `at + first` and `count - first` stay within the ring's STREAM bytes. The reader does
    // not touch the `count` bytes after `written` before the position moves there.
    unsafe {
        std::ptr::copy_nonoverlapping(bytes.as_ptr(), ring.add(at), first);
        std::ptr::copy_nonoverlapping(bytes.as_ptr().add(first), ring, count - first);
    }
    head.written
        .0
        .store(written.wrapping_add(count as u64), Ordering::SeqCst);
    count
}

/// Reads the available bytes, at most `bytes.len()`, from the stream of `from` (the peer's arena)
/// to rank `to` (this rank).
pub(super) fn read(from: &Arena, to: usize, bytes: &mut [u8]) -> usize {
    let (head, ring) = from.stream(to);
    let read = head.read.0.load(Ordering::Relaxed);
    let there = head.written.0.load(Ordering::Acquire).wrapping_sub(read);
    let count = usize::try_from(there)
        .unwrap_or(STREAM)
        .min(STREAM)
        .min(bytes.len());
    let at = read as usize % STREAM;
    let first = count.min(STREAM - at);
    // SAFETY: within the ring as in `write`. The writer does not touch the `count` bytes after
    // `read` before the position has moved past them.
    unsafe {
        std::ptr::copy_nonoverlapping(ring.add(at), bytes.as_mut_ptr(), first);
        std::ptr::copy_nonoverlapping(ring, bytes.as_mut_ptr().add(first), count - first);
    }
    head.read
        .0
        .store(read.wrapping_add(count as u64), Ordering::SeqCst);
    count
}

/// Whether [`write`] would take at least a byte.
pub(super) fn can_write(from: &Arena, to: usize) -> bool {
    let (head, _) = from.stream(to);
    let used = head
        .written
        .0
        .load(Ordering::SeqCst)
        .wrapping_sub(head.read.0.load(Ordering::SeqCst));
    used < STREAM as u64
}

/// Whether [`read`] would return at least a byte.
pub(super) fn can_read(from: &Arena, to: usize) -> bool {
    let (head, _) = from.stream(to);
    head.written.0.load(Ordering::SeqCst) != head.read.0.load(Ordering::SeqCst)
}
