//! Room for the stack of the main thread, on which a rank computes.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Least stack that this program gets along with.
const NEEDED: u64 = 512 << 10;
/// What systems usually give.
const USUAL: u64 = 8 << 20;

/// Raises the limit of the stack where that is lower than this program needs; the system looks at
/// it whenever a stack grows. To be called with little on the stack.
///
/// # Errors
/// What to say where it may not be raised so far.
pub fn make_room() -> Result<(), String> {
    let limit = getrlimit(Resource::Stack);
    if is_enough(limit.current) {
        return Ok(());
    }
    let raised = Rlimit {
        current: Some(limit.maximum.unwrap_or(USUAL).min(USUAL)),
        maximum: limit.maximum,
    };
    // Whether it worked shows in the limit.
    let _ = setrlimit(Resource::Stack, raised);
    let current = getrlimit(Resource::Stack).current;
    match current.filter(|_| !is_enough(current)) {
        None => Ok(()),
        Some(bytes) => Err(format!(
            "the stack limit is {} KiB, but trainer needs {} KiB. Raise it with `ulimit -s {}`",
            bytes >> 10,
            NEEDED >> 10,
            USUAL >> 10
        )),
    }
}

fn is_enough(limit: Option<u64>) -> bool {
    limit.is_none_or(|bytes| bytes >= NEEDED)
}
