//! `trainer predict`: predicts the classes of image files.

use std::path::{Path, PathBuf};

use clap::Args;
use datasets::image_files;
use serde_json::{Value, json};

use super::args::TrainedArgs;
use super::failure::Failure;
use super::output::{self, Way};
use crate::FAILED;
use crate::config::paths;
use crate::system::output::{complain, say};
use crate::tools::trained::NamedGuess;

/// Arguments of `trainer predict`.
#[derive(Debug, Args)]
pub struct PredictArgs {
    #[command(flatten)]
    trained: TrainedArgs,
    /// Reads these image files (PNG, JPEG, WebP, BMP, TIFF or PNM) or folders, with subfolders.
    #[arg(value_name = "IMAGE|FOLDER", required = true, value_parser = paths::argument())]
    images: Vec<PathBuf>,
    /// Prints the K most probable classes of each image.
    #[arg(long, value_name = "K", default_value_t = 3, value_parser = clap::value_parser!(u16).range(1..))]
    top: u16,
    /// Also writes classes and probabilities to this file, one JSON object per line and image.
    #[arg(long, value_name = "FILE", value_parser = paths::argument())]
    jsonl: Option<PathBuf>,
}

/// Prints the likeliest classes of each image.
///
/// Reports unreadable images, predicts the others, and then returns the exit code of a failure.
pub fn run(args: &PredictArgs) -> Result<i32, Failure> {
    if let Some(path) = &args.jsonl {
        output::check("--jsonl", path, Way::InPlace)?;
    }
    let trained = args.trained.find()?;
    trained.notes.iter().for_each(|note| complain(note));
    let mut told = Told::default();
    let images = told.files(&args.images);
    if images.is_empty() {
        return Err(Failure::Usage(
            "found no images; name image files or folders of images".to_owned(),
        ));
    }
    let top = args.top.into();
    trained.predict(&images, top, |path, guesses| match guesses {
        Ok(guesses) => told.guesses(path, guesses),
        Err(error) => told.error(Some(path), &error),
    })?;
    trained.taken().iter().for_each(|note| complain(note));
    if let Some(path) = &args.jsonl {
        output::write(path, told.lines.as_bytes())?;
    }
    Ok(told.code)
}

/// Output about the images so far.
#[derive(Default)]
struct Told {
    code: i32,
    /// The predictions as JSON lines.
    lines: String,
}

impl Told {
    /// The images in `paths`.
    fn files(&mut self, paths: &[PathBuf]) -> Vec<PathBuf> {
        let mut files = Vec::new();
        for path in paths {
            if !path.is_dir() {
                files.push(path.clone());
                continue;
            }
            let (mut found, errors) = image_files(path);
            files.append(&mut found);
            errors.iter().for_each(|error| self.error(None, error));
        }
        files
    }

    fn guesses(&mut self, path: &Path, guesses: &[NamedGuess]) {
        let names: Vec<String> = guesses
            .iter()
            .map(|guess| format!("{} {:.1} %", guess.class, 100.0 * guess.probability))
            .collect();
        say(&format!("{}: {}", path.display(), names.join(", ")));
        let guesses: Vec<Value> = guesses
            .iter()
            .map(|guess| json!({"class": guess.class, "probability": guess.probability}))
            .collect();
        self.line(path, "guesses", guesses.into());
    }

    /// Reports an image, or another path, that cannot be read.
    fn error(&mut self, image: Option<&Path>, error: &datasets::DatasetError) {
        complain(&format!("error: {error}"));
        self.code = FAILED;
        if let Some(path) = image {
            self.line(path, "error", error.to_string().into());
        }
    }

    fn line(&mut self, path: &Path, key: &str, value: Value) {
        let object = json!({"image": path.display().to_string(), key: value});
        self.lines.push_str(&format!("{object}\n"));
    }
}
