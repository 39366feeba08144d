//! Where a model that trains in a low precision reads its parameters as they are.

use std::cell::Cell;

thread_local! {
    static FULL: Cell<bool> = const { Cell::new(false) };
}

/// Runs `read` so that the parameters it reads are not cast to the low precision that the model
/// trains in: for the layers of a model that must compute in `f32`, such as normalizations.
///
/// Such a layer casts its input to the type of its parameters and its result back. Without mixed
/// precision this changes nothing, so models may call it unconditionally.
pub fn full_precision<R>(read: impl FnOnce() -> R) -> R {
    // Also when `read` panics, which a caller may catch.
    struct Restore(bool);
    impl Drop for Restore {
        fn drop(&mut self) {
            FULL.set(self.0);
        }
    }
    let _restore = Restore(FULL.replace(true));
    read()
}

/// Whether [`full_precision`] is in force on this thread.
pub(super) fn is_in_force() -> bool {
    FULL.get()
}
