//! The depth in the graph that gradient hooks take, one per thread: that of the activation which
//! entered the current block. No result depends on it, only when gradients are handed over.

use std::cell::Cell;

#[derive(Clone, Copy, Default)]
struct Current {
    hooks_in_use: bool,
    depth: usize,
}

thread_local! {
    static CURRENT: Cell<Current> = Cell::default();
}

/// Remembers the depth of an activation for the hooks that follow on this thread.
pub(super) fn set(depth: usize) {
    CURRENT.set(Current {
        depth,
        ..CURRENT.get()
    });
}

/// Whether a hooked parameter has been read on this thread since the last [`forget`].
pub(super) fn hooks_in_use() -> bool {
    CURRENT.get().hooks_in_use
}

/// The depth above which a hook is to lie; 0, the end of backward, where no activation has entered
/// a block.
pub(super) fn for_hook() -> usize {
    let depth = CURRENT.get().depth;
    CURRENT.set(Current {
        hooks_in_use: true,
        depth,
    });
    depth
}

/// Forgets everything: a forward pass begins, or has ended.
pub(crate) fn forget() {
    CURRENT.set(Current::default());
}
