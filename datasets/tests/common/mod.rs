//! Shared parts of several test programs.

// Every test program uses a part of it.
#![allow(dead_code)]

pub mod cifar;

use std::io::Write;

/// Tells why a test did nothing.
pub fn skipped(reason: &str) {
    say(&format!("SKIPPED: {reason}"));
}

/// Not through `eprintln!`, which the test harness hides when a test passes.
pub fn say(text: &str) {
    let _ = writeln!(std::io::stderr(), "{text}");
}
