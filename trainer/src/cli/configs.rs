//! `trainer configs`: the built-in configurations.

use super::failure::Failure;
use crate::config::{EMBEDDED, Embedded};
use crate::system::output::say;

/// Lists the configurations, or prints the one called `name`.
pub fn run(name: Option<&str>) -> Result<i32, Failure> {
    let Some(name) = name else {
        for config in EMBEDDED {
            say(&format!("{:<24} {}", config.name, config.summary()));
        }
        return Ok(0);
    };
    let Some(config) = Embedded::find(name) else {
        return Err(Failure::Usage(Embedded::not_found(name)));
    };
    say(config.text.trim_end());
    Ok(0)
}
