//! Ensures enough stack for the main thread, on which a rank computes.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Minimum stack that this program needs.
const NEEDED: u64 = 512 << 10;
/// The usual limit of systems.
const USUAL: u64 = 8 << 20;

/// Raises the stack limit if it is too low. The system checks it whenever a stack grows.
///
/// Call it with little on the stack.
///
/// # Errors
/// The message for the user if the limit may not be raised.
pub fn make_room() -> Result<(), String> {
    let limit = getrlimit(Resource::Stack);
    if is_enough(limit.current) {
        return Ok(());
    }
    let raised = Rlimit {
        current: Some(limit.maximum.unwrap_or(USUAL).min(USUAL)),
        maximum: limit.maximum,
    };
    // The limit tells below whether it worked.
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
