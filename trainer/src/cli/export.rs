//! `trainer export`: writes a trained model into one file.

use std::path::PathBuf;

use clap::Args;

use super::args::TrainedArgs;
use super::failure::Failure;
use super::output::{self, Way};
use crate::config::paths;
use crate::system::output::{complain, say};
use crate::tools::trained::Format;

/// Arguments of `trainer export`.
#[derive(Debug, Args)]
pub struct ExportArgs {
    #[command(flatten)]
    trained: TrainedArgs,
    /// Writes this safetensors file.
    #[arg(long, value_name = "FILE", default_value = "model.safetensors", value_parser = paths::argument())]
    out: PathBuf,
    /// Names and lays out tensors in this format.
    #[arg(long, value_enum, default_value_t)]
    format: Format,
}

/// Writes the file and prints its path.
pub fn run(args: &ExportArgs) -> Result<i32, Failure> {
    output::check("--out", &args.out, Way::Replaced)?;
    let trained = args.trained.find()?;
    trained.notes.iter().for_each(|note| complain(note));
    trained.export(&args.out, args.format)?;
    trained.taken().iter().for_each(|note| complain(note));
    say(&format!(
        "{}: the model of {}",
        args.out.display(),
        trained.title()
    ));
    Ok(0)
}
