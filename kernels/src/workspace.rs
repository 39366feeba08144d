//! Scratch memory that outlives the calls: fresh memory would cost page faults in every step.
//!
//! Large buffers are aligned to 2 MiB and asked to lie in huge pages: a transformed image touches
//! hundreds of streams, more than the address cache has entries for small pages.

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::ptr::NonNull;
use std::sync::{Mutex, PoisonError};

/// From this size on a buffer is aligned to huge pages.
const HUGE: usize = 2 << 20;
/// Buffers that are kept at most; a thread needs three at a time.
const KEPT: usize = 256;

/// Buffers that are free at the moment.
#[derive(Debug, Default)]
pub(crate) struct Workspace {
    free: Mutex<Vec<Buffer>>,
}

/// A buffer that goes back into the workspace when dropped. Its contents are arbitrary numbers.
pub(crate) struct Lease<'a> {
    workspace: &'a Workspace,
    buffer: Option<Buffer>,
    length: usize,
}

impl Workspace {
    /// A buffer of at least `length` elements with arbitrary contents.
    pub(crate) fn take(&self, length: usize) -> Lease<'_> {
        let mut free = self.free.lock().unwrap_or_else(PoisonError::into_inner);
        // The smallest that suffices, but none that is far too large.
        let best = free
            .iter()
            .enumerate()
            .filter(|(_, buffer)| buffer.length >= length && buffer.length / 4 <= length.max(4096))
            .min_by_key(|(_, buffer)| buffer.length)
            .map(|(index, _)| index);
        let found = best.map(|index| free.swap_remove(index));
        drop(free);
        Lease {
            workspace: self,
            buffer: Some(found.unwrap_or_else(|| Buffer::new(length))),
            length,
        }
    }

    /// A buffer of zeros.
    pub(crate) fn zeros(&self, length: usize) -> Lease<'_> {
        let mut lease = self.take(length);
        lease.slice().fill(0.0);
        lease
    }
}

impl Lease<'_> {
    /// The elements.
    pub(crate) fn slice(&mut self) -> &mut [f32] {
        match &mut self.buffer {
            // SAFETY: the buffer has `length` initialised elements and is borrowed exclusively.
            Some(buffer) => unsafe {
                std::slice::from_raw_parts_mut(buffer.start.as_ptr(), self.length)
            },
            None => &mut [],
        }
    }

    /// The address of the first element.
    pub(crate) fn pointer(&mut self) -> *mut f32 {
        self.slice().as_mut_ptr()
    }
}

impl Drop for Lease<'_> {
    fn drop(&mut self) {
        let mut free = self
            .workspace
            .free
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        if let Some(buffer) = self.buffer.take()
            && free.len() < KEPT
        {
            free.push(buffer);
        }
    }
}

/// Memory for `length` initialised elements.
#[derive(Debug)]
pub(crate) struct Buffer {
    start: NonNull<f32>,
    /// Elements, at least as many as were asked for.
    pub(crate) length: usize,
    layout: Layout,
}

// SAFETY: a buffer owns its memory, which has no tie to a thread.
unsafe impl Send for Buffer {}
// SAFETY: through a shared reference the memory cannot be reached.
unsafe impl Sync for Buffer {}

impl Buffer {
    /// Zeros.
    pub(crate) fn new(length: usize) -> Self {
        let bytes = length.max(16).saturating_mul(size_of::<f32>());
        let (bytes, align) = match bytes.checked_next_multiple_of(HUGE) {
            Some(rounded) if bytes >= HUGE / 2 => (rounded, HUGE),
            _ => (bytes, 64),
        };
        let Ok(layout) = Layout::from_size_align(bytes, align) else {
            handle_alloc_error(Layout::new::<f32>());
        };
        // SAFETY: the layout is not empty.
        let memory = unsafe { alloc_zeroed(layout) };
        let Some(start) = NonNull::new(memory.cast::<f32>()) else {
            handle_alloc_error(layout);
        };
        if align == HUGE {
            prefer_huge_pages(memory, bytes);
        }
        Self {
            start,
            length: bytes / size_of::<f32>(),
            layout,
        }
    }
}

impl Buffer {
    /// The address of the first element.
    #[cfg(feature = "burn")]
    pub(crate) fn pointer(&self) -> *mut f32 {
        self.start.as_ptr()
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        // SAFETY: it was allocated with this layout and nothing else frees it.
        unsafe { dealloc(self.start.as_ptr().cast(), self.layout) };
    }
}

/// Asks for huge pages; without them the kernels are slower, not wrong.
#[cfg(all(target_os = "linux", not(miri)))]
fn prefer_huge_pages(memory: *mut u8, bytes: usize) {
    use rustix::mm::{Advice, madvise};
    // SAFETY: the range was just allocated; the advice does not change its contents.
    let _ = unsafe { madvise(memory.cast(), bytes, Advice::LinuxHugepage) };
}

#[cfg(not(all(target_os = "linux", not(miri))))]
fn prefer_huge_pages(_: *mut u8, _: usize) {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_come_back() {
        let workspace = Workspace::default();
        let first = workspace.take(1000).pointer();
        assert_eq!(workspace.take(900).pointer(), first);
        let (mut one, mut two) = (workspace.take(1000), workspace.take(1000));
        assert_ne!(one.pointer(), two.pointer());
        assert_eq!(one.slice().len(), 1000);
    }

    #[test]
    fn zeros_are_zeros_in_used_buffers() {
        let workspace = Workspace::default();
        workspace.take(100).slice().fill(7.0);
        assert!(
            workspace
                .zeros(100)
                .slice()
                .iter()
                .all(|&value| value == 0.0)
        );
    }

    #[test]
    fn large_buffers_are_aligned_to_huge_pages() {
        let workspace = Workspace::default();
        assert_eq!(workspace.take(HUGE).pointer() as usize % HUGE, 0);
    }
}
