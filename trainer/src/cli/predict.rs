//! `trainer predict`: what images show.

use std::path::PathBuf;

use clap::Args;

use super::args::TrainedArgs;
use super::failure::Failure;
use crate::FAILED;
use crate::console::{complain, say};

/// Arguments of `trainer predict`.
#[derive(Debug, Args)]
pub struct PredictArgs {
    #[command(flatten)]
    trained: TrainedArgs,
    /// Image files: PNG, JPEG, WebP, BMP, TIFF or PNM.
    #[arg(value_name = "IMAGE", required = true)]
    images: Vec<PathBuf>,
    /// Number of classes that are named for each image.
    #[arg(long, value_name = "K", default_value_t = 3, value_parser = clap::value_parser!(u16).range(1..))]
    top: u16,
}

/// Names the most probable classes of each image. Images that cannot be read are complained of,
/// and make the exit code that of a failure, after all others are predicted.
pub fn run(args: &PredictArgs) -> Result<i32, Failure> {
    let trained = args.trained.find()?;
    trained.notes.iter().for_each(|note| complain(note));
    let mut code = 0;
    trained.predict(
        &args.images,
        args.top.into(),
        |path, guesses| match guesses {
            Ok(guesses) => {
                let guesses: Vec<String> = guesses
                    .iter()
                    .map(|guess| format!("{} {:.1} %", guess.class, 100.0 * guess.probability))
                    .collect();
                say(&format!("{}: {}", path.display(), guesses.join(", ")));
            }
            Err(error) => {
                complain(&format!("error: {error}"));
                code = FAILED;
            }
        },
    )?;
    Ok(code)
}
