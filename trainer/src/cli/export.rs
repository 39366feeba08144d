//! `trainer export`: writes a trained model into one file.

use std::path::PathBuf;

use clap::Args;

use super::args::TrainedArgs;
use super::failure::Failure;
use super::output::{self, Way};
use crate::config::paths;
use crate::system::output::{complain, say};
use crate::tools::trained::{Container, Format};

/// Arguments of `trainer export`.
#[derive(Debug, Args)]
pub struct ExportArgs {
    #[command(flatten)]
    trained: TrainedArgs,
    /// Writes this file. The ending decides the format: .safetensors, or .pt and .pth for
    /// PyTorch's torch.load.
    #[arg(long, value_name = "FILE", default_value = "model.safetensors", value_parser = paths::argument())]
    out: PathBuf,
    /// Names and lays out tensors like PyTorch's modules or Burn's. Burn's needs .safetensors.
    #[arg(long, value_enum, default_value_t)]
    format: Format,
}

/// Writes the file and prints its path.
pub fn run(args: &ExportArgs) -> Result<i32, Failure> {
    output::check("--out", &args.out, Way::Replaced)?;
    check_ending(args)?;
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

/// Refuses names whose ending says another format.
fn check_ending(args: &ExportArgs) -> Result<(), Failure> {
    let (out, endings) = (args.out.display(), Container::ENDINGS);
    let is_onnx = args
        .out
        .extension()
        .is_some_and(|ending| ending.eq_ignore_ascii_case("onnx"));
    match (Container::of_path(&args.out), args.format) {
        (Some(Container::Pytorch), Format::Burn) => Err(Failure::Usage(format!(
            "cannot write {out}: PyTorch does not know the layout of --format burn. Write it to a \
             .safetensors file"
        ))),
        (Some(_), _) => Ok(()),
        (None, _) if is_onnx => Err(Failure::Usage(format!(
            "cannot write {out}: this program does not write ONNX. Export a .pt file, load it into \
             the model in PyTorch, and call torch.onnx.export"
        ))),
        (None, _) => Err(Failure::Usage(format!(
            "cannot write {out}: the name must end with {endings}. Choose another name with --out"
        ))),
    }
}
