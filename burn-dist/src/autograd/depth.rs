//! The graph depth for gradient hooks, one per thread: the depth of the activation that entered the
//! current block. It decides only when gradients are handed over, never a result.

use std::cell::Cell;

#[derive(Clone, Copy, Default)]
struct Current {
    hooks_in_use: bool,
    depth: usize,
}

thread_local! {
    static CURRENT: Cell<Current> = Cell::default();
}

/// Sets the depth for the hooks that follow on this thread.
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

/// The depth above which a hook lies. 0, the end of backward, if no activation has entered a block.
pub(super) fn for_hook() -> usize {
    let depth = CURRENT.get().depth;
    CURRENT.set(Current {
        hooks_in_use: true,
        depth,
    });
    depth
}

/// Resets the depth: a forward pass begins or has ended.
pub(crate) fn forget() {
    CURRENT.set(Current::default());
}
