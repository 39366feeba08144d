//! Trained models: finds a checkpoint or weights file, and rebuilds the model from it.

mod evaluation;
mod export;
mod prediction;
mod subject;
mod weights_file;

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use burn::module::Module;
use burn::tensor::Device;
use burn_dist::ProcessGroup;
use burn_dist::checkpoint::{CheckpointError, Manifest, Source, list, newest_good};
use burn_dist::parallel::load_model;
use datasets::Dataset;
use models::ImageClassifier;
use models::weights::{PyTorchKeys, WeightsError};
use serde_json::Value;

use crate::config::run_name::{CHECKPOINTS, CONFIG_FILE};
use crate::config::{Config, ConfigError, Loaded, WeightsConfig};
use crate::error::TrainError;
use crate::run::dir;
use crate::run::environment::Environment;
use crate::run::resume::{absolute, named};
use crate::system::compute;
use crate::task::classification::check_classes;
use crate::train::progress::Meta;
use crate::train::{initial, misfit, named_weights};
use weights_file::About;

pub use evaluation::TrainedEvaluation;
pub use export::Format;
pub use models::weights::Container;
pub use prediction::{NamedGuess, PredictOptions, PredictedImage, PredictionSink, Todo};
pub use subject::Subject;

/// Choice of a checkpoint in a run folder.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Which {
    /// The best by evaluation, or the last good one if no best is known.
    #[default]
    Best,
    /// The last good one.
    Last,
}

/// Trained parameters of a checkpoint or weights file, with the model's configuration.
#[derive(Clone, Debug)]
pub struct Trained {
    /// The configuration, with the source of each key.
    pub loaded: Loaded,
    /// Folder of the checkpoint, or the file.
    pub path: PathBuf,
    /// Optimizer steps done, if known.
    pub step: Option<u64>,
    /// Epoch of the last step, from 1; 0 if the checkpoint does not say.
    pub epoch: u64,
    /// The run folder, if known.
    pub run_dir: Option<PathBuf>,
    /// Messages on the choice for the user.
    pub notes: Vec<String>,
    /// Message on the place of the data, for commands that read it.
    pub data_note: Option<String>,
    /// Micro-batches of a rank so far, if the checkpoint says.
    batches: Option<u64>,
    /// Images per training step over all ranks, if the checkpoint says.
    global_batch: Option<usize>,
    /// Metadata of a weights file.
    file: Option<About>,
    /// Messages on the tensors taken from the file.
    taken: OnceLock<Vec<String>>,
    /// Whether the configuration names data to evaluate on.
    has_data: bool,
}

/// Error of a search for a trained model.
#[derive(Debug, thiserror::Error)]
pub enum FindError {
    /// The configuration cannot be used.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// A checkpoint is damaged or cannot be read.
    #[error(transparent)]
    Checkpoint(CheckpointError),
    /// A file of weights is damaged or cannot be read.
    #[error(transparent)]
    Weights(#[from] WeightsError),
    /// The path holds no trained model.
    #[error("{}: {reason}", path.display())]
    Nothing {
        /// The path.
        path: PathBuf,
        /// The missing part, and advice.
        reason: String,
    },
}

impl From<CheckpointError> for FindError {
    fn from(error: CheckpointError) -> Self {
        match error {
            CheckpointError::NotACheckpoint(path) => Self::Nothing {
                path,
                reason: "is neither a checkpoint (manifest.json is missing) nor a run folder with \
                         checkpoints"
                    .to_owned(),
            },
            other => Self::Checkpoint(other),
        }
    }
}

impl Trained {
    /// Finds the model at `path`: a run folder, a checkpoint or a weights file.
    ///
    /// Verifies the checksums of checkpoints.
    ///
    /// The configuration is `config`, else that of the run folder, else the one embedded in the
    /// checkpoint or weights file; `sets` override its keys. Relative data paths of a run belong to
    /// the folder where it was started.
    ///
    /// # Errors
    /// See [`FindError`].
    pub fn find(
        path: &Path,
        which: Which,
        config: Option<&str>,
        sets: &[String],
    ) -> Result<Self, FindError> {
        if !path.exists() {
            return Err(FindError::Nothing {
                path: path.to_owned(),
                reason: "no such checkpoint, run folder or weights file".to_owned(),
            });
        }
        if path.extension().is_some_and(|ending| ending == "toml") {
            return Err(FindError::Nothing {
                path: path.to_owned(),
                reason: "a configuration is no trained model; give a run folder, a checkpoint or \
                         weights"
                    .to_owned(),
            });
        }
        if path.is_file() {
            return Self::of_file(path, config, sets);
        }
        let run = named(path);
        let path = match run == absolute(path) {
            true => path,
            false => run.as_path(),
        };
        // A run creates the folder of checkpoints for its first checkpoint.
        if dir::is_run(path) && !path.join(CHECKPOINTS).is_dir() {
            return Err(no_checkpoint(path));
        }
        let (checkpoint, notes, run_dir) = if path.join(CHECKPOINTS).is_dir() {
            let (checkpoint, notes) = in_run(path, which)?;
            (checkpoint, notes, Some(path.to_owned()))
        } else {
            verify(path)?;
            // RUN/checkpoints/step-N
            let run_dir = absolute(path).ancestors().nth(2).map(Path::to_owned);
            (path.to_owned(), Vec::new(), run_dir)
        };
        let manifest = Manifest::read(&checkpoint)?;
        let (loaded, data_note) = match config {
            Some(name) => (Loaded::load(name, sets)?, None),
            None => configuration(path, run_dir.as_deref(), &manifest, sets)?,
        };
        Ok(Self {
            step: Some(manifest.step),
            epoch: manifest.meta["progress"]["epoch"]
                .as_u64()
                .unwrap_or_default(),
            batches: manifest.meta["progress"]["batches"].as_u64(),
            global_batch: manifest.meta["task"]["global_batch"]
                .as_u64()
                .and_then(|images| usize::try_from(images).ok()),
            loaded,
            path: checkpoint,
            run_dir,
            notes,
            data_note,
            file: None,
            taken: OnceLock::new(),
            has_data: true,
        })
    }

    fn of_file(path: &Path, config: Option<&str>, sets: &[String]) -> Result<Self, FindError> {
        let (loaded, about) = weights_file::find(path, config, sets)?;
        Ok(Self {
            path: path.to_owned(),
            step: about.step,
            epoch: 0,
            run_dir: None,
            notes: Vec::new(),
            data_note: None,
            batches: None,
            global_batch: None,
            has_data: config.is_some() || loaded.is_written("data.name"),
            loaded,
            file: Some(about),
            taken: OnceLock::new(),
        })
    }

    /// Messages on the tensors taken from a weights file, once the model was built.
    pub fn taken(&self) -> &[String] {
        self.taken.get().map_or(&[], Vec::as_slice)
    }

    /// Path and progress of training in words.
    pub fn title(&self) -> String {
        let path = self.path.display();
        let step = self.step.map(|step| format!("{path}, step {step}"));
        step.unwrap_or_else(|| path.to_string())
    }

    /// Builds and fills the model for images and classes of `data`, and passes it to `then`.
    ///
    /// # Errors
    /// Fails if the parameters belong to another model, or one for other classes.
    pub fn with_model<T>(
        &self,
        data: &dyn Dataset,
        device: &Device,
        then: impl WithTrained<Output = T>,
    ) -> Result<T, TrainError> {
        let config = self.config();
        compute::choose_kernels(config, device)?;
        let load = Load {
            values: self.values(data)?,
            then,
        };
        let built = config.model.build(data, device, load);
        built.map_err(|error| misfit::of_model(&self.loaded, &error))?
    }

    /// The parameters, for the images and classes of `data`.
    fn values(&self, data: &dyn Dataset) -> Result<Values<'_>, TrainError> {
        match &self.file {
            Some(about) => about.check_data(data)?,
            None => return Ok(Values::Checkpoint(self.source(data)?)),
        }
        self.values_for_any()
    }

    /// The parameters, for any data.
    fn values_for_any(&self) -> Result<Values<'_>, TrainError> {
        let weights = &self.config().weights;
        Ok(match &self.file {
            Some(_) => Values::File(&self.path, weights, &self.taken),
            None => Values::Checkpoint(Source::open(&self.path)?),
        })
    }

    /// Checks that the task is image classification.
    ///
    /// # Errors
    /// [`TrainError::OnlyImages`] if it is not.
    fn check_images(&self) -> Result<(), TrainError> {
        match self.config().task.is_usual() {
            true => Ok(()),
            false => Err(TrainError::OnlyImages(self.config().task.kind.name())),
        }
    }

    /// A text that changes with the parameters: the checksums of a checkpoint, or the size and time
    /// of a weights file.
    ///
    /// # Errors
    /// Fails if the system refuses.
    pub fn fingerprint(&self) -> Result<String, TrainError> {
        if self.file.is_none() {
            let files = Manifest::read(&self.path)?.files;
            return Ok(files.into_iter().map(|file| file.blake3).collect());
        }
        let found = std::fs::metadata(&self.path);
        let found = found.map_err(|source| WeightsError::Read {
            path: self.path.clone(),
            source,
        })?;
        Ok(format!(
            "{} {} {}",
            found.len(),
            found.mtime(),
            found.mtime_nsec()
        ))
    }

    /// Checks that all ranks found the same model. A collective call.
    ///
    /// A training may write checkpoints while the ranks search, and nodes may have their own files.
    fn check_same(&self, group: &ProcessGroup) -> Result<(), TrainError> {
        let name = self.path.file_name().unwrap_or_default().to_string_lossy();
        let own = match self.step {
            Some(step) => format!("{name}, step {step}"),
            None => name.into_owned(),
        };
        let all = group.gather_bytes(own.as_bytes())?;
        let Some(rank) = all.iter().position(|other| *other != all[0]) else {
            return Ok(());
        };
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        Err(TrainError::ModelDiffers {
            rank,
            theirs: text(&all[rank]),
            ours: text(&all[0]),
        })
    }

    fn config(&self) -> &Config {
        &self.loaded.config
    }

    /// Adds to `error` the place of the key at fault.
    fn locate(&self, error: TrainError) -> TrainError {
        misfit::of_checkpoint(&self.loaded, error)
    }

    /// The parameters of the checkpoint, for the classes of `data`.
    fn source(&self, data: &dyn Dataset) -> Result<Source, TrainError> {
        let source = Source::open(&self.path)?;
        check_classes(source.manifest(), data.class_names())?;
        Ok(source)
    }
}

/// A use of a trained model.
pub trait WithTrained {
    /// The result.
    type Output;

    /// Uses the model.
    ///
    /// # Errors
    /// Any error of the use.
    fn call<M: ImageClassifier + PyTorchKeys>(self, model: M) -> Result<Self::Output, TrainError>;
}

/// Source of a model's parameters.
enum Values<'a> {
    Checkpoint(Source),
    File(&'a Path, &'a WeightsConfig, &'a OnceLock<Vec<String>>),
}

impl Values<'_> {
    /// The model with these parameters.
    fn fill<M: Module + PyTorchKeys>(self, model: M) -> Result<M, TrainError> {
        match self {
            Self::Checkpoint(source) => Ok(load_model(model, &source)?),
            // A model to evaluate needs all of its tensors.
            Self::File(path, config, told) => {
                let whole = WeightsConfig {
                    strict: true,
                    ..config.clone()
                };
                let (model, taken) = named_weights::load(&model, path, false, &whole)?;
                // A file with one candidate needs no message.
                if !taken.alternatives.is_empty() {
                    let _ = told.set(initial::notes(path, &taken));
                }
                Ok(model)
            }
        }
    }
}

/// Fills a model that is built.
struct Load<'a, T> {
    values: Values<'a>,
    then: T,
}

impl<T: WithTrained> crate::config::WithModel for Load<'_, T> {
    type Output = Result<T::Output, TrainError>;

    fn call<M: ImageClassifier + PyTorchKeys>(self, model: M) -> Self::Output {
        self.then.call(self.values.fill(model)?)
    }
}

/// The configuration of the checkpoint or run at `path`, and a message on the place of its data.
///
/// It is that of the run folder, else the one in the checkpoint.
fn configuration(
    path: &Path,
    run_dir: Option<&Path>,
    manifest: &Manifest,
    sets: &[String],
) -> Result<(Loaded, Option<String>), FindError> {
    let run_dir = run_dir.filter(|folder| folder.join(CONFIG_FILE).is_file());
    if let Some(folder) = run_dir {
        let mut loaded = Loaded::load_file(&folder.join(CONFIG_FILE), sets)?;
        let started = Environment::read(folder).unwrap_or_default().folder;
        let note = match started.as_str() {
            "" => None,
            started => loaded.resolve_data(Path::new(started)),
        };
        return Ok((loaded, note));
    }
    match Meta::config_of(manifest) {
        Some(text) => Ok((Loaded::of_checkpoint(path, &text, sets)?, None)),
        None => Err(FindError::Nothing {
            path: path.to_owned(),
            reason: format!(
                "its run folder has no {CONFIG_FILE}. Name the configuration with --config"
            ),
        }),
    }
}

/// A checkpoint of a run folder, and messages on the choice.
fn in_run(run_dir: &Path, which: Which) -> Result<(PathBuf, Vec<String>), FindError> {
    let folder = run_dir.join(CHECKPOINTS);
    let (newest, bad) = newest_good(&folder)?;
    let mut notes: Vec<String> = bad
        .iter()
        .map(|error| format!("warning: skipped a checkpoint: {error}"))
        .collect();
    let Some(newest) = newest else {
        if bad.is_empty() {
            return Err(no_checkpoint(run_dir));
        }
        let wrong: Vec<String> = bad.iter().map(ToString::to_string).collect();
        return Err(FindError::Nothing {
            path: run_dir.to_owned(),
            reason: format!("contains no good checkpoint: {}", wrong.join("; ")),
        });
    };
    if which == Which::Last {
        return Ok((newest.path, notes));
    }
    let found = list(&folder)?;
    for step in best_steps(&Manifest::read(&newest.path)?) {
        // If the best state was never written, the best one before it remains.
        let Some(best) = found.iter().find(|found| found.step == step) else {
            continue;
        };
        match verify(&best.path) {
            Ok(()) => return Ok((best.path.clone(), notes)),
            Err(error) => notes.push(format!(
                "warning: the best checkpoint is unusable, using another one: {error}"
            )),
        }
    }
    Ok((newest.path, notes))
}

fn no_checkpoint(run_dir: &Path) -> FindError {
    FindError::Nothing {
        path: run_dir.to_owned(),
        reason:
            "this run has no checkpoint. Train with checkpoint.every_epochs = 1 (the default), or \
             wait for the first checkpoint of a running training"
                .to_owned(),
    }
}

/// Steps of the best evaluations up to the checkpoint, the best first.
fn best_steps(manifest: &Manifest) -> Vec<u64> {
    let progress = &manifest.meta["progress"];
    let earlier = progress["earlier_bests"].as_array();
    let all = [&progress["best"][0]]
        .into_iter()
        .chain(earlier.into_iter().flatten());
    all.filter_map(Value::as_u64).collect()
}

fn verify(path: &Path) -> Result<(), CheckpointError> {
    let manifest = Manifest::read(path)?;
    manifest.files.iter().try_for_each(|file| file.verify(path))
}
