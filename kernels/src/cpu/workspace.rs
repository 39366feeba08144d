//! Scratch memory that outlives the calls, because fresh memory costs page faults in every step.

use parking_lot::Mutex;

use crate::cpu::pages::Buffer;

/// Maximum number of kept buffers; a thread needs three at a time.
const KEPT: usize = 256;

/// Buffers that are free.
#[derive(Debug, Default)]
pub(crate) struct Workspace {
    free: Mutex<Vec<Buffer>>,
}

/// A buffer that returns to the workspace when dropped. Its contents are arbitrary numbers.
pub(crate) struct Lease<'a> {
    workspace: &'a Workspace,
    buffer: Option<Buffer>,
    length: usize,
}

impl Workspace {
    /// Takes a buffer of at least `length` elements with arbitrary contents.
    pub(crate) fn take(&self, length: usize) -> Lease<'_> {
        let mut free = self.free.lock();
        // The smallest sufficient buffer, but none that is far too large.
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

    /// Takes a buffer of zeros.
    pub(crate) fn zeros(&self, length: usize) -> Lease<'_> {
        let mut lease = self.take(length);
        lease.slice().fill(0.0);
        lease
    }
}

impl Lease<'_> {
    /// Returns the elements.
    pub(crate) fn slice(&mut self) -> &mut [f32] {
        match &mut self.buffer {
            // SAFETY: the buffer has `length` initialised elements and is borrowed exclusively.
            Some(buffer) => unsafe {
                std::slice::from_raw_parts_mut(buffer.pointer(), self.length)
            },
            None => &mut [],
        }
    }

    /// Returns the address of the first element.
    pub(crate) fn pointer(&mut self) -> *mut f32 {
        self.slice().as_mut_ptr()
    }
}

impl Drop for Lease<'_> {
    fn drop(&mut self) {
        let mut free = self.workspace.free.lock();
        if let Some(buffer) = self.buffer.take()
            && free.len() < KEPT
        {
            free.push(buffer);
        }
    }
}

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
}
