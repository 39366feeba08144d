//! Turns panics of foreign code into errors: readers of weights and of optimizers' records get what
//! comes from outside, and tell some faults by a panic alone. A panic hook that ends the process
//! asks [`is_running`] first.

use std::any::Any;
use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};

thread_local! {
    /// How many [`run`] this thread is inside of.
    static DEPTH: Cell<usize> = const { Cell::new(0) };
}

/// What `work` gives, or the message of its panic. What it has changed by then is as the panic left
/// it.
///
/// A panic hook is still called, as for every panic: it asks [`is_running`].
///
/// # Errors
/// If `work` panics.
pub fn run<T>(work: impl FnOnce() -> T) -> Result<T, String> {
    let _inside = Inside::enter();
    catch_unwind(AssertUnwindSafe(work)).map_err(|panic| message(&*panic).to_owned())
}

/// Whether this thread is inside of [`run`], so that its panic becomes an error.
pub fn is_running() -> bool {
    // A thread that ends has nothing left to be contained in.
    DEPTH.try_with(Cell::get).is_ok_and(|depth| depth > 0)
}

/// What a panic says.
pub fn message(panic: &(dyn Any + Send)) -> &str {
    panic
        .downcast_ref::<String>()
        .map(String::as_str)
        .or_else(|| panic.downcast_ref::<&'static str>().copied())
        .unwrap_or("a panic without a message")
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
        assert_eq!(other, Err("a panic without a message".to_owned()));
    }

    #[test]
    fn it_is_known_who_is_inside() {
        assert!(!is_running());
        let inner = run(|| {
            let panicked = run(|| assert!(!is_running(), "inside"));
            // The outer one goes on.
            (panicked, is_running())
        });
        assert_eq!(inner, Ok((Err("inside".to_owned()), true)));
        assert!(!is_running());
        let elsewhere = run(|| std::thread::spawn(is_running).join().unwrap());
        assert_eq!(elsewhere, Ok(false));
    }
}
