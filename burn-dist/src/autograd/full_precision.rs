//! `full_precision`: reads parameters without the cast of mixed precision.

use std::cell::Cell;

thread_local! {
    static FULL: Cell<bool> = const { Cell::new(false) };
}

/// Runs `read` with parameters in their own type instead of the model's low precision.
///
/// For layers that must compute in `f32`, such as normalizations. The layer casts its input to the
/// type of its parameters, and its result back. Without mixed precision this changes nothing, so
/// models may call it unconditionally.
pub fn full_precision<R>(read: impl FnOnce() -> R) -> R {
    // Restored also if `read` panics, because a caller may catch the panic.
    struct Restore(bool);
    impl Drop for Restore {
        fn drop(&mut self) {
            FULL.set(self.0);
        }
    }
    let _restore = Restore(FULL.replace(true));
    read()
}

/// Whether this thread is inside [`full_precision`].
pub(super) fn is_in_force() -> bool {
    FULL.get()
}
