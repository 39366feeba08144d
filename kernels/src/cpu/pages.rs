//! Memory of large buffers, in huge pages if the system has them.
//!
//! A transformed image touches hundreds of streams, more than the TLB has entries for small pages.
//! The program's allocator would write zeros before huge pages can be requested, and would keep
//! returned memory in pieces. So large buffers are mapped from the system and returned there.

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::ptr::NonNull;

/// Size of a huge page in bytes.
#[cfg(all(target_os = "linux", not(miri)))]
const HUGE: usize = 2 << 20;

/// Memory for `length` initialised elements.
#[derive(Debug)]
pub(crate) struct Buffer {
    start: NonNull<f32>,
    /// Elements, at least as many as requested.
    pub(crate) length: usize,
    origin: Origin,
}

#[derive(Debug)]
enum Origin {
    Allocator(Layout),
    /// A separate mapping of this many bytes.
    #[cfg(all(target_os = "linux", not(miri)))]
    Mapping(usize),
}

// SAFETY: a buffer owns its memory, which is not tied to a thread.
unsafe impl Send for Buffer {}
// SAFETY: the memory cannot be reached through a shared reference.
unsafe impl Sync for Buffer {}

impl Buffer {
    /// Allocates a buffer of zeros.
    pub(crate) fn new(length: usize) -> Self {
        let bytes = length.max(16).saturating_mul(size_of::<f32>());
        #[cfg(all(target_os = "linux", not(miri)))]
        if bytes >= HUGE / 2
            && let Some(mapped) = map(bytes)
        {
            return mapped;
        }
        let Ok(layout) = Layout::from_size_align(bytes, 64) else {
            handle_alloc_error(Layout::new::<f32>());
        };
        // SAFETY: the layout is not empty.
        let memory = unsafe { alloc_zeroed(layout) };
        let Some(start) = NonNull::new(memory.cast::<f32>()) else {
            handle_alloc_error(layout);
        };
        Self {
            start,
            length: bytes / size_of::<f32>(),
            origin: Origin::Allocator(layout),
        }
    }

    /// Returns the address of the first element.
    pub(crate) fn pointer(&self) -> *mut f32 {
        self.start.as_ptr()
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        let memory = self.start.as_ptr();
        match self.origin {
            // SAFETY: it was allocated with this layout and nothing else frees it.
            Origin::Allocator(layout) => unsafe { dealloc(memory.cast(), layout) },
            // SAFETY: it was mapped with this length, and nobody has a pointer into it any more. If
            // the system refuses, the memory stays with this process.
            #[cfg(all(target_os = "linux", not(miri)))]
            Origin::Mapping(bytes) => unsafe {
                let _ = rustix::mm::munmap(memory.cast(), bytes);
            },
        }
    }
}

/// Maps at least `bytes` bytes, aligned to a huge page if they fill one. Returns `None` if the
/// system refuses.
#[cfg(all(target_os = "linux", not(miri)))]
fn map(bytes: usize) -> Option<Buffer> {
    use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};

    let bytes = bytes.checked_next_multiple_of(rustix::param::page_size())?;
    let slack = if bytes >= HUGE { HUGE } else { 0 };
    let all = bytes.checked_add(slack)?;
    let (protection, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE);
    // SAFETY: a new anonymous mapping, at an address that the system chooses.
    let first = unsafe { mmap_anonymous(std::ptr::null_mut(), all, protection, flags) }.ok()?;
    let before = if slack == 0 {
        0
    } else {
        first.cast::<u8>().align_offset(HUGE).min(slack)
    };
    // SAFETY: within the mapping; the parts before and after are unmapped here and used by nobody.
    // The advice does not change contents. Without it the kernels are slower, not wrong.
    let start = unsafe {
        let start = first.byte_add(before);
        if before > 0 {
            let _ = munmap(first, before);
        }
        if slack > before {
            let _ = munmap(start.byte_add(bytes), slack - before);
        }
        let _ = madvise(start, bytes, Advice::LinuxHugepage);
        start
    };
    Some(Buffer {
        start: NonNull::new(start.cast())?,
        length: bytes / size_of::<f32>(),
        origin: Origin::Mapping(bytes),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_of_a_buffer_can_be_written() {
        for length in [0, 1, 5_000, 262_144, 600_000, 1_200_001] {
            let buffer = Buffer::new(length);
            assert!(buffer.length >= length);
            // SAFETY: the buffer has this many initialised elements.
            let all = unsafe { std::slice::from_raw_parts_mut(buffer.pointer(), buffer.length) };
            assert!(all.iter().all(|&value| value == 0.0));
            all.fill(1.0);
        }
    }

    #[cfg(all(target_os = "linux", not(miri)))]
    #[test]
    fn large_buffers_begin_with_a_huge_page() {
        assert_eq!(Buffer::new(HUGE).pointer() as usize % HUGE, 0);
    }
}
