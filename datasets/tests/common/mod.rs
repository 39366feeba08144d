//! Helpers of several test programs.

// Every test program uses only some of it.
#![allow(dead_code)]

pub mod cifar;

use std::io::Write;

/// Prints why a test did nothing.
pub fn skipped(reason: &str) {
    say(&format!("SKIPPED: {reason}"));
}

/// Prints to the real standard error: the test harness hides `eprintln!` of passing tests.
pub fn say(text: &str) {
    let _ = writeln!(std::io::stderr(), "{text}");
}
