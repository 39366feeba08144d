//! `trainer predict`: predicts the classes of image files.

use std::io::ErrorKind;
use std::ops::ControlFlow;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use burn_dist::world::{Launch, World};
use clap::Args;
use datasets::image_files;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use super::args::TrainedArgs;
use super::failure::Failure;
use super::json_lines::{self, BatchedWork, JsonLines};
use super::output::{self, Way};
use super::ranks::{Ranks, check_readable, on_ranks, world_size};
use crate::FAILED;
use crate::config::paths;
use crate::error::TrainError;
use crate::system::output::{complain, say};
use crate::tools::trained::{
    NamedGuess, PredictOptions, PredictedImage, PredictionSink, Todo, Trained,
};

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
    /// Also writes classes and probabilities to this file, one JSON object per line and image. With
    /// -, standard output gets these lines and nothing else. After a kill, the same command
    /// continues from FILE.partial.
    #[arg(long, value_name = "FILE", value_parser = paths::argument())]
    jsonl: Option<PathBuf>,
    /// Starts N ranks on this machine that share the images. The output is the same.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    nproc: Option<u16>,
    /// Stops at the first image that cannot be read.
    #[arg(long)]
    stop_at_error: bool,
}

impl PredictArgs {
    /// Number of ranks to start, if given.
    pub fn nproc(&self) -> Option<u16> {
        self.nproc
    }

    fn check_output(&self) -> Result<(), Failure> {
        match &self.jsonl {
            Some(path) if !json_lines::is_stdout(path) => {
                output::check("--jsonl", path, Way::InPlace)
            }
            _ => Ok(()),
        }
    }

    fn writes_to_stdout(&self) -> bool {
        self.jsonl.as_deref().is_some_and(json_lines::is_stdout)
    }
}

/// Prints the likeliest classes of each image.
///
/// Reports unreadable images, predicts the others, and then returns the exit code of a failure.
pub fn run(args: &PredictArgs, world: &World) -> Result<i32, Failure> {
    let size = world_size(args.nproc, 1, world)?;
    if world.launch() == Launch::Single {
        args.check_output()?;
    }
    let ranks = Ranks {
        direct_output: args.writes_to_stdout(),
        ..Ranks::without_restarts(size)
    };
    check_readable(args.trained.config.as_deref(), ranks, world)?;
    let trained = args.trained.find()?;
    let unknown = || None;
    on_ranks(ranks, world, unknown, || {
        if world.is_main() {
            trained.notes.iter().for_each(|note| complain(note));
        }
        let options = PredictOptions {
            top: args.top.into(),
            stop_at_error: args.stop_at_error,
        };
        let mut told = Told {
            args,
            trained: &trained,
            code: 0,
            to: None,
            batches: 0,
        };
        trained.predict(world, options, &mut told)?;
        if world.is_main() {
            trained.taken().iter().for_each(|note| complain(note));
        }
        told.finish()
    })
}

/// Output of the main rank.
struct Told<'a> {
    args: &'a PredictArgs,
    trained: &'a Trained,
    code: i32,
    /// The JSON lines, and the images they are for.
    to: Option<(JsonLines, PredictedFiles)>,
    /// Batches so far.
    batches: usize,
}

impl PredictionSink for Told<'_> {
    fn begin(&mut self, batch: usize) -> Result<Todo, TrainError> {
        let args = self.args;
        let refused = |failure: Failure| TrainError::Refused(failure.to_string());
        args.check_output().map_err(refused)?;
        let paths = self.files();
        if paths.is_empty() {
            let advice = "found no images; name image files or folders of images";
            return Err(TrainError::Refused(advice.to_owned()));
        }
        if let Some(path) = &args.jsonl {
            let images = PredictedFiles {
                paths: paths.clone(),
                batch,
                model: model(self.trained)?,
                top: args.top,
            };
            let code = &mut self.code;
            let (lines, batches) = JsonLines::open(path, &images, &mut |line| {
                let line: Value = serde_json::from_str(line).unwrap_or_default();
                if let Some(error) = line["error"].as_str() {
                    complain(&format!("error: {error}"));
                    *code = FAILED;
                }
            })?;
            if batches > 0 {
                complain(&format!(
                    "continues {}.partial after {} of {} images",
                    path.display(),
                    paths.len().min(batches * batch),
                    paths.len()
                ));
            }
            self.to = Some((lines, images));
            self.batches = batches;
        }
        Ok(Todo {
            paths,
            batches_done: self.batches,
        })
    }

    fn take(&mut self, batch: &[PredictedImage<'_>]) -> Result<ControlFlow<()>, TrainError> {
        let mut lines = String::new();
        for PredictedImage { path, guesses } in batch {
            let (key, value) = match guesses {
                Ok(guesses) => ("guesses", self.guesses(path, guesses)),
                Err(error) => ("error", self.error(error)),
            };
            let object = json!({"image": path.display().to_string(), key: value});
            lines.push_str(&format!("{object}\n"));
        }
        let number = self.batches;
        self.batches += 1;
        let Some((to, images)) = &mut self.to else {
            return Ok(ControlFlow::Continue(()));
        };
        match to.write(&images.batch(number).1, &lines) {
            // A reader that closes the pipe has read enough.
            Err(TrainError::Output { error, .. }) if error.kind() == ErrorKind::BrokenPipe => {
                Ok(ControlFlow::Break(()))
            }
            written => written.map(ControlFlow::Continue),
        }
    }
}

impl Told<'_> {
    /// The images in the arguments.
    fn files(&mut self) -> Vec<PathBuf> {
        let args = self.args;
        let mut files = Vec::new();
        for path in &args.images {
            if !path.is_dir() {
                files.push(path.clone());
                continue;
            }
            let (mut found, errors) = image_files(path);
            files.append(&mut found);
            for error in errors {
                self.error(&error.to_string());
            }
        }
        files
    }

    fn guesses(&self, path: &Path, guesses: &[NamedGuess]) -> Value {
        if !self.args.writes_to_stdout() {
            let names: Vec<String> = guesses
                .iter()
                .map(|guess| format!("{} {:.1} %", guess.class, 100.0 * guess.probability))
                .collect();
            say(&format!("{}: {}", path.display(), names.join(", ")));
        }
        let guesses = guesses
            .iter()
            .map(|guess| json!({"class": guess.class, "probability": guess.probability}));
        guesses.collect()
    }

    /// Reports an image, or another path, that cannot be read.
    fn error(&mut self, error: &str) -> Value {
        complain(&format!("error: {error}"));
        self.code = FAILED;
        error.into()
    }

    fn finish(self) -> Result<i32, Failure> {
        if let Some((lines, _)) = self.to {
            lines.finish()?;
        }
        Ok(self.code)
    }
}

/// PredictedFiles to predict, for an unfinished file of their predictions.
struct PredictedFiles {
    paths: Vec<PathBuf>,
    /// PredictedFiles per batch.
    batch: usize,
    /// Digest of model and configuration.
    model: String,
    top: u16,
}

impl BatchedWork for PredictedFiles {
    fn identity(&self) -> String {
        let mut hasher = Sha256::new();
        hasher.update(json!([self.model, self.top, self.batch]).to_string());
        for path in &self.paths {
            hasher.update(path.as_os_str().as_bytes());
            hasher.update([0]);
        }
        hex(hasher)
    }

    fn batches(&self) -> usize {
        self.paths.len().div_ceil(self.batch)
    }

    fn batch(&self, batch: usize) -> (usize, String) {
        let paths = self.paths.chunks(self.batch).nth(batch).unwrap_or_default();
        let mut hasher = Sha256::new();
        for path in paths {
            let stamp = std::fs::metadata(path)
                .map(|found| [found.mtime(), found.mtime_nsec(), found.len() as i64]);
            hasher.update(json!(stamp.ok()).to_string());
        }
        (paths.len(), hex(hasher))
    }
}

/// Digest of everything that decides the predictions, except the images.
fn model(trained: &Trained) -> Result<String, TrainError> {
    let parts = [
        env!("CARGO_PKG_VERSION"),
        &trained.title(),
        &trained.fingerprint()?,
        &trained.loaded.config.to_toml()?,
    ];
    Ok(hex(Sha256::new().chain_update(json!(parts).to_string())))
}

fn hex(hasher: Sha256) -> String {
    let digest = hasher.finalize();
    digest.iter().map(|byte| format!("{byte:02x}")).collect()
}
