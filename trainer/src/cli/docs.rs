//! `trainer docs`: the reference of the configuration keys.

use super::failure::Failure;
use crate::config::{Meaning, explain, key_meant, reference};
use crate::system::output::say;

/// Prints the whole reference, or what it says of a key or a section.
pub fn run(word: Option<&str>) -> Result<i32, Failure> {
    let Some(word) = word else {
        say(reference::markdown().trim_end());
        return Ok(0);
    };
    if let Some(text) = explain::about(word) {
        say(text.trim_end());
        return Ok(0);
    }
    match key_meant(word) {
        Some(Meaning::Key(path)) => {
            say(&format!("`{word}` is {path} here.\n"));
            say(explain::about(&path).unwrap_or_default().trim_end());
        }
        Some(Meaning::Elsewhere(advice)) => say(&format!("`{word}`: {advice}")),
        None => return Err(Failure::Usage(explain::not_found(word))),
    }
    Ok(0)
}
