//! `trainer activations`: measures the activation memory of a micro-batch, in a fresh process.

use std::io::Write;
use std::process::{Command, Stdio};

use clap::Args;

use super::args::ConfigArgs;
use super::failure::Failure;
use crate::config::Config;
use crate::system::allocator;
use crate::system::output::say;
use crate::tools::activations;

/// Arguments of `trainer activations`.
#[derive(Debug, Args)]
pub struct ActivationsArgs {
    #[command(flatten)]
    config: ConfigArgs,
    /// Sets the number of images in a micro-batch.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    images: u32,
}

/// Prints the bytes, if the system tells them.
pub fn run(args: &ActivationsArgs) -> Result<i32, Failure> {
    allocator::keep_freed_memory();
    let config = args.config.load()?.config;
    let images = usize::try_from(args.images).unwrap_or(usize::MAX);
    if let Some(bytes) = activations::measure(&config, images)? {
        say(&bytes.to_string());
    }
    Ok(0)
}

/// Runs this command for `config` in a child process. `None` if that fails.
pub fn measured(config: &Config, images: usize) -> Option<u64> {
    let mut file = tempfile::Builder::new().suffix(".toml").tempfile().ok()?;
    file.write_all(config.to_toml().ok()?.as_bytes()).ok()?;
    let output = Command::new(std::env::current_exe().ok()?)
        .args(super::WITHIN.get())
        .arg("activations")
        .arg("--config")
        .arg(file.path())
        .args(["--images", &images.to_string()])
        .stdin(Stdio::null())
        .output()
        .ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    text.trim().parse().ok()
}
