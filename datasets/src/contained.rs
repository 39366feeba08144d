//! Turns panics of image decoders into errors: they read what comes from anywhere. A panic hook
//! that ends the process asks [`is_running`] first. `burn_dist::contained` does the same for
//! readers of weights; this crate does without Burn.

use std::any::Any;
use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};

thread_local! {
    /// Whether this thread is inside of [`run`].
    static RUNNING: Cell<bool> = const { Cell::new(false) };
}

/// Returns what `work` gives, or the message of its panic. A panic hook is called all the same.
///
/// # Errors
/// If `work` panics.
pub fn run<T>(work: impl FnOnce() -> T) -> Result<T, String> {
    let before = RUNNING.replace(true);
    let done = catch_unwind(AssertUnwindSafe(work));
    RUNNING.set(before);
    done.map_err(|panic| message(&*panic).to_owned())
}

/// Whether this thread runs a decoder, whose panic becomes an error.
pub fn is_running() -> bool {
    // A thread that ends runs no decoder.
    RUNNING.try_with(Cell::get).unwrap_or(false)
}

/// What a panic says.
pub(crate) fn message(panic: &(dyn Any + Send)) -> &str {
    panic
        .downcast_ref::<String>()
        .map(String::as_str)
        .or_else(|| panic.downcast_ref::<&'static str>().copied())
        .unwrap_or("a panic without a message")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_becomes_its_message_and_is_known_meanwhile() {
        assert!(!is_running());
        let inner = run(|| (run(|| assert!(!is_running(), "inside")), is_running()));
        assert_eq!(inner, Ok((Err("inside".to_owned()), true)));
        assert!(!is_running());
        let number = 3;
        let panicked = run(|| -> u8 { panic!("number {number}") });
        assert_eq!(panicked, Err("number 3".to_owned()));
        let other = run(|| std::panic::panic_any(1_u8));
        assert_eq!(other, Err("a panic without a message".to_owned()));
    }
}
