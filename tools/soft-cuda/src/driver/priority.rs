//! Gives threads that run kernels priority over threads that wait for them. Programs poll while
//! they wait (cubecl does so while its queue is full). That costs nothing beside a GPU, but here it
//! takes CPU time from the kernels.

use std::cell::Cell;

use rustix::process::setpriority_process;
use rustix::thread::gettid;

/// As `nice` has it.
const PRIORITY: i32 = -15;

thread_local! {
    static RAISED: Cell<bool> = const { Cell::new(false) };
}

/// Raises this thread's priority, once. Most users may not; they only wait longer.
pub(super) fn raise() {
    if !RAISED.replace(true) {
        let _ = setpriority_process(Some(gettid()), PRIORITY);
    }
}
