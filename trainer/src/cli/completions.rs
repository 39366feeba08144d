//! `trainer completions`: shell completion scripts.

use clap::Command;
use clap_complete::Shell;

use super::failure::Failure;
use crate::system::output::say;

/// Prints the script for the shell to source.
pub fn run(shell: Shell, mut program: Command) -> Result<i32, Failure> {
    let name = program.get_name().to_owned();
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut program, name, &mut script);
    say(String::from_utf8_lossy(&script).trim_end());
    Ok(0)
}
