//! Turns panics of foreign code into errors.
//!
//! Image decoders and readers of weights and optimizer records get data from outside, and report
//! some faults only by a panic. A panic hook that ends the process asks [`is_running`] first.

use std::any::Any;
use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};

thread_local! {
    /// Number of [`run`] calls that this thread is inside of.
    static DEPTH: Cell<usize> = const { Cell::new(0) };
}

/// Runs `work` and turns its panic into an error message.
///
/// Changes made by `work` stay as the panic left them. Panic hooks run as for every panic; they can
/// ask [`is_running`].
///
/// # Errors
/// Returns the panic's message.
pub fn run<T>(work: impl FnOnce() -> T) -> Result<T, String> {
    let _inside = Inside::enter();
    catch_unwind(AssertUnwindSafe(work)).map_err(|panic| message(&*panic).to_owned())
}

/// Whether this thread is inside [`run`], so that a panic becomes an error.
pub fn is_running() -> bool {
    // A thread whose locals are gone is not inside `run`.
    DEPTH.try_with(Cell::get).is_ok_and(|depth| depth > 0)
}

/// The message of a panic.
pub fn message(panic: &(dyn Any + Send)) -> &str {
    panic
        .downcast_ref::<String>()
        .map(String::as_str)
        .or_else(|| panic.downcast_ref::<&'static str>().copied())
        .unwrap_or("panic without a message")
}

struct Inside;

impl Inside {
    fn enter() -> Self {
        DEPTH.set(DEPTH.get() + 1);
        Self
    }
}

impl Drop for Inside {
    fn drop(&mut self) {
        DEPTH.set(DEPTH.get().saturating_sub(1));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_becomes_its_message() {
        assert_eq!(run(|| 7), Ok(7));
        let number = 3;
        let panicked = run(|| -> u8 { panic!("number {number}") });
        assert_eq!(panicked, Err("number 3".to_owned()));
        assert_eq!(run(|| -> u8 { panic!("plain") }), Err("plain".to_owned()));
        let other = run(|| std::panic::panic_any(1_u8));
        assert_eq!(other, Err("panic without a message".to_owned()));
    }

    #[test]
    fn it_is_known_who_is_inside() {
        assert!(!is_running());
        let inner = run(|| {
            let panicked = run(|| assert!(!is_running(), "inside"));
            // The outer call continues.
            (panicked, is_running())
        });
        assert_eq!(inner, Ok((Err("inside".to_owned()), true)));
        assert!(!is_running());
        let elsewhere = run(|| std::thread::spawn(is_running).join().unwrap());
        assert_eq!(elsewhere, Ok(false));
    }
}
