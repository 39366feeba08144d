//! Threads that make kernels run come before those that wait for them. Programs wait by asking
//! again and again (cubecl does so while its queue is full), which costs nothing beside a GPU, but
//! here takes processors from the kernels that they wait for.

use std::cell::Cell;

use rustix::process::setpriority_process;
use rustix::thread::gettid;

/// As `nice` has it.
const PRIORITY: i32 = -15;

thread_local! {
    static RAISED: Cell<bool> = const { Cell::new(false) };
}

/// Raises this thread's priority, once. Who may not do that, as most users may not, only has to
/// wait longer.
pub(super) fn raise() {
    if !RAISED.replace(true) {
        let _ = setpriority_process(Some(gettid()), PRIORITY);
    }
}
