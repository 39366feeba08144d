//! `trainer preview`: draws the first training batch.

use std::path::PathBuf;

use clap::Args;

use super::args::ConfigArgs;
use super::failure::Failure;
use super::output::{self, Way};
use crate::config::paths;
use crate::system::output::{complain, say};
use crate::tools::preview::{self, Preview, PreviewOptions};

/// Arguments of `trainer preview`.
#[derive(Debug, Args)]
pub struct PreviewArgs {
    #[command(flatten)]
    config: ConfigArgs,
    /// Writes the picture to this PNG file.
    #[arg(long, value_name = "FILE", default_value = "preview.png", value_parser = paths::argument())]
    out: PathBuf,
    /// Shows N images, at most one global batch.
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = clap::value_parser!(u16).range(1..))]
    images: u16,
    /// Draws the first batch of this epoch.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    epoch: u32,
}

/// Draws the picture and prints its path.
pub fn run(args: &PreviewArgs) -> Result<i32, Failure> {
    output::check_ending("--out", &args.out, "png")?;
    let loaded = args.config.load()?;
    output::check("--out", &args.out, Way::InPlace)?;
    let options = PreviewOptions {
        images: args.images.into(),
        epoch: args.epoch as usize,
    };
    let Preview { picture, missing } = preview::draw(&loaded, options)?;
    output::write(&args.out, &preview::png(&picture)?)?;
    say(&format!(
        "{}: {}×{} pixels",
        args.out.display(),
        picture.width(),
        picture.height()
    ));
    if !missing.is_empty() {
        complain(&format!(
            "warning: no font of this machine has the characters {missing} of the class names. \
             Install one, such as the Debian package fonts-noto-cjk for Chinese, Japanese and \
             Korean"
        ));
    }
    Ok(0)
}
