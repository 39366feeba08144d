//! The depth in the graph that gradient hooks take, one per thread: that of the activation which entered the current
//! block. It says when backward comes to them, and nothing of it depends on it being right.

use std::cell::RefCell;

#[derive(Clone, Copy, Default)]
struct Current {
    hooks_in_use: bool,
    depth: usize,
}

thread_local! {
    static CURRENT: RefCell<Current> = RefCell::default();
}

/// Remembers the depth of an activation for the hooks that follow on this thread.
pub(super) fn set(depth: usize) {
    CURRENT.with_borrow_mut(|current| current.depth = depth);
}

/// Whether a hooked parameter has been read on this thread since the last [`forget`].
pub(super) fn hooks_in_use() -> bool {
    CURRENT.with_borrow(|current| current.hooks_in_use)
}

/// The depth above which a hook is to lie; 0, the end of backward, where no activation has entered a block.
pub(super) fn for_hook() -> usize {
    CURRENT.with_borrow_mut(|current| {
        current.hooks_in_use = true;
        current.depth
    })
}

/// Forgets everything: a forward pass begins, or has ended.
pub(crate) fn forget() {
    CURRENT.with_borrow_mut(|current| *current = Current::default());
}
