//! Raises the priority of threads that run kernels over those that wait for them. Programs wait by
//! polling (cubecl does while its queue is full), which costs nothing with a GPU, but here takes
//! CPUs from the kernels that they wait for.

use std::cell::Cell;

use rustix::process::setpriority_process;
use rustix::thread::gettid;

/// A `nice` value.
const PRIORITY: i32 = -15;

thread_local! {
    static RAISED: Cell<bool> = const { Cell::new(false) };
}

/// Raises this thread's priority, once. Without the permission, which most users lack, it only has
/// to wait longer.
pub(super) fn raise() {
    if !RAISED.replace(true) {
        let _ = setpriority_process(Some(gettid()), PRIORITY);
    }
}
