//! Errors of a run.

use std::io;
use std::path::{Path, PathBuf};

use burn_dist::parallel::ParallelError;
use burn_dist::rendezvous::RendezvousError;
use burn_dist::thread_limit::NoThreads;
use models::weights::WeightsError;

use crate::config::ConfigError;

/// Weights file that a model cannot start from.
#[derive(thiserror::Error)]
#[error("cannot load model.weights: {source}{}", hint(*other_head))]
pub struct InitialError {
    /// Whether all but the last layer fits.
    pub(crate) other_head: bool,
    pub(crate) source: WeightsError,
}

burn_dist::debug_is_display!(InitialError);

fn hint(other_head: bool) -> &'static str {
    match other_head {
        true => {
            "\nOnly the last layer does not fit, as in a model for other classes. Set \
             model.new_head = true to train a new one"
        }
        false => "",
    }
}

/// Any error of a run.
#[derive(thiserror::Error)]
pub enum TrainError {
    /// The configuration cannot be used.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The configuration does not fit the data or the model. Every rank finds this by itself.
    #[error(transparent)]
    Misfit(ConfigError),
    /// A collective or the connection of the ranks failed.
    #[error(transparent)]
    Dist(#[from] burn_dist::Error),
    /// A training step, or saving or restoring its state, failed.
    #[error(transparent)]
    Parallel(#[from] ParallelError),
    /// The model cannot be built.
    #[error(transparent)]
    Model(#[from] models::ModelError),
    /// The data cannot be read.
    #[error(transparent)]
    Data(datasets::DatasetError),
    /// The system does not allow the required number of threads.
    #[error(transparent)]
    Threads(#[from] NoThreads),
    /// The data cannot be divided as configured.
    #[error(transparent)]
    Sampler(#[from] datasets::SamplerError),
    /// The ranks have different configurations.
    #[error(
        "rank {rank} has another configuration than rank 0: {key} is {theirs} there and {ours} on \
         rank 0. Give all ranks the same file and the same --set"
    )]
    ConfigDiffers {
        /// The first rank that differs.
        rank: usize,
        /// The first key that differs.
        key: String,
        /// Its value on rank 0.
        ours: String,
        /// Its value on that rank.
        theirs: String,
    },
    /// A rank has different data.
    #[error(
        "rank {rank} has other data than rank 0: {theirs} there, {ours} on rank 0. Give all nodes \
         the same files (data.dir)"
    )]
    DataDiffers {
        /// The first rank that differs.
        rank: usize,
        /// Data of rank 0.
        ours: String,
        /// Data of that rank.
        theirs: String,
    },
    /// A trained model has other classes than the data.
    #[error(
        "the model was trained for other classes: {0}. Set data.dir to data with the same class \
         names in the same order, or train a model for these classes"
    )]
    OtherClasses(String),
    /// A weights file belongs to a model for another image normalization.
    #[error(
        "the model was trained on images normalized with mean {:?} and standard deviation {:?}, \
         but the data uses {:?} and {:?}. Set data.mean and data.std to the values of the training",
        trained.mean, trained.std, data.mean, data.std
    )]
    OtherNormalization {
        /// Normalization of the training.
        trained: datasets::Normalization,
        /// Normalization of the data.
        data: datasets::Normalization,
    },
    /// No usable device.
    #[error(transparent)]
    Device(#[from] burn_dist::device::DeviceError),
    /// The device has too little memory.
    #[error(transparent)]
    Memory(#[from] burn_dist::device::MemoryShortage),
    /// The device cannot do the configured augmentation.
    #[error(
        "data.on_device = true supports only the augmentations shift, crop (by less than the \
         image), flip and repeat. Remove the others, or set data.on_device = false"
    )]
    DataOnDevice,
    /// Only a program knows the task.
    #[error(
        "task.name = \"own\" means a task that a program passes to the library's \
         `Trainer::run_task`, but none was passed"
    )]
    OwnTask,
    /// A task of a program failed.
    #[error("{0}")]
    Task(String),
    /// The data is for another task.
    #[error("the data does not go with the task. Set data.name to one of: {0}")]
    OtherData(&'static str),
    /// A command works for image classification only.
    #[error("this command needs the task `classification`, but task.name is \"{0}\"")]
    OnlyImages(&'static str),
    /// A schedule that follows the evaluations has no data for them.
    #[error(
        "the schedule `{schedule}` depends on evaluations, but there is no data for them. Hold some \
         out (data.validation), or choose another schedule.name"
    )]
    NoEvaluation {
        /// Name of the schedule.
        schedule: &'static str,
    },
    /// A group of `[[optimizer.groups]]` has no effect: earlier groups match its parameters.
    #[error(
        "the group `{group}` is never used: groups before it match all its parameters, and the \
         first match counts. Move it up, or remove it"
    )]
    GroupTaken {
        /// Pattern of the group.
        group: String,
    },
    /// A pattern of `model.freeze` matches no parameter.
    #[error(
        "`{pattern}` of model.freeze matches no parameter of the model. Its parameters: {}",
        paths.join(", ")
    )]
    NothingFrozen {
        /// The pattern.
        pattern: String,
        /// The first parameters of the model.
        paths: Vec<String>,
    },
    /// `model.freeze` names all parameters.
    #[error(
        "model.freeze matches all parameters, so nothing is left to train. Leave out the last \
         layer, or another one"
    )]
    AllFrozen,
    /// A batch normalization would get one value per channel.
    #[error(
        "a batch normalization gets one value per channel, so it gives the same output for every \
         image. Its input has one position, and a micro-batch has one image. Set \
         train.micro_batch_size to at least 2{}{}, or train on larger images",
        more_than_one(*accumulate).map(|now| format!(", lower train.accumulate (now {now})")).unwrap_or_default(),
        if *together { ", set parallel.sync_batch_norm = true" } else { "" }
    )]
    OneValue {
        /// Whether there are several ranks, so that synchronized statistics would help.
        together: bool,
        /// Micro-batches per step of a rank.
        accumulate: usize,
    },
    /// The kernels cannot be loaded.
    #[error(transparent)]
    Kernels(#[from] kernels::KernelError),
    /// A value that must be finite is NaN or infinite.
    #[error("{what} is {value}: training diverged. Lower optimizer.lr or set train.clip_norm")]
    Diverged {
        /// Name of the value.
        what: String,
        /// The value.
        value: f64,
        /// Steps done before the model that produced the value.
        state: u64,
    },
    /// A run skipped nearly all its steps.
    #[error(
        "{skipped} of {steps} steps were skipped, because their gradients overflowed in f16, so \
         the model did not learn. Lower optimizer.lr or loss_scale.initial, set train.clip_norm, \
         or use train.precision = \"bf16\""
    )]
    Skipped {
        /// Skipped steps.
        skipped: u64,
        /// Steps of the run.
        steps: u64,
    },
    /// A result cannot be read from the device, most often because its memory ran out.
    #[error(
        "cannot compute {what}: {reason}\nIf the device is out of memory, lower \
         train.micro_batch_size or set train.recompute = true"
    )]
    NotComputed {
        /// Name of the result.
        what: String,
        /// Message of the device.
        reason: String,
    },
    /// A rank could not predict a batch of images. All ranks get this error.
    #[error("{}", prediction(.0))]
    Predict(burn_dist::MapError),
    /// The ranks found different trained models.
    #[error(
        "rank {rank} found another model than rank 0: {theirs} there, {ours} on rank 0. Name the \
         checkpoint itself instead of the run folder"
    )]
    ModelDiffers {
        /// The first rank that differs.
        rank: usize,
        /// Model of rank 0.
        ours: String,
        /// Model of that rank.
        theirs: String,
    },
    /// A callback failed.
    #[error("a callback failed: {0}")]
    Callback(String),
    /// The run cannot be resumed as requested.
    #[error("cannot resume: {0}")]
    Resume(String),
    /// A checkpoint cannot be read.
    #[error(transparent)]
    Checkpoint(#[from] burn_dist::checkpoint::CheckpointError),
    /// The last state of a run was not written.
    #[error("the state after step {steps} was not saved: {end}")]
    NotSaved {
        /// Steps of the run.
        steps: u64,
        /// Consequence and advice.
        end: &'static str,
    },
    /// The run folder cannot be made or written.
    #[error("cannot write the run folder at {}: {error}", path.display())]
    RunDir {
        /// The folder or file.
        path: PathBuf,
        /// Error of the system.
        error: io::Error,
    },
    /// The weights file that training should start from cannot be used.
    #[error(transparent)]
    Initial(#[from] InitialError),
    /// Weights cannot be read or written.
    #[error(transparent)]
    Weights(#[from] models::weights::WeightsError),
    /// An output file cannot be written.
    #[error("cannot write {}: {error}", path.display())]
    Output {
        /// The file.
        path: PathBuf,
        /// Error of the system.
        error: io::Error,
    },
    /// The run folder holds another run.
    #[error(
        "{} already contains a run. Continue it with --resume auto, or choose another folder with \
         --run-dir",
        .0.display()
    )]
    RunDirTaken(PathBuf),
    /// Another run has begun and ended in the folder since this one began.
    #[error(
        "{by} trained in {} after this run started, and has ended. To continue from its result, \
         start this run again with --resume auto. Otherwise choose another folder with --run-dir",
        folder.display()
    )]
    RunDirJustTaken {
        /// The folder.
        folder: PathBuf,
        /// The other process.
        by: String,
    },
    /// Another process writes into the run folder.
    #[error(
        "{} is in use by {by}. Wait for it to end, or choose another folder with --run-dir{}",
        folder.display(),
        lost_lock.as_deref().map(left_behind).unwrap_or_default()
    )]
    RunDirInUse {
        /// The folder.
        folder: PathBuf,
        /// The other process.
        by: String,
        /// The lock file, if the process is on another host.
        lost_lock: Option<PathBuf>,
    },
    /// The run folder, or its token, no longer belongs to this run.
    #[error(
        "{}. This run ends, so that no two runs write there. {}",
        lost(folder, by.as_deref()),
        match saved {
            true => "To continue it, start it again with --resume auto",
            false =>
                "The folder contains no checkpoint: start a new run, or restore the folder and \
                 start the run with --resume auto",
        }
    )]
    RunDirLost {
        /// The folder.
        folder: PathBuf,
        /// The process that took it over, if any.
        by: Option<String>,
        /// Whether the folder at this path now holds a checkpoint.
        saved: bool,
    },
    /// A node of `trainer launch` has another folder at the path of the run folder.
    #[error(
        "rank {rank} does not see the run folder {} of rank 0. The nodes of `trainer launch` need a \
         --run-dir that they share",
        folder.display()
    )]
    RunDirNotShared {
        /// The rank.
        rank: usize,
        /// The folder.
        folder: PathBuf,
    },
    /// The main rank rejects the run folder. The other ranks repeat its message.
    #[error("{0}")]
    Refused(String),
    /// The path of the run folder is no folder.
    #[error("{} is not a folder. Choose another with --run-dir", .0.display())]
    RunDirNotAFolder(PathBuf),
}

burn_dist::debug_is_display!(TrainError);

/// Describes the error of the rank that failed; the message of its item says all about the item.
fn prediction(error: &burn_dist::MapError) -> String {
    match error {
        burn_dist::MapError::Item { rank, reason, .. } => format!("rank {rank}: {reason}"),
        other => other.to_string(),
    }
}

fn more_than_one(number: usize) -> Option<usize> {
    (number > 1).then_some(number)
}

/// Describes the loss of a run folder.
fn lost(folder: &Path, by: Option<&str>) -> String {
    let folder = folder.display();
    match by {
        Some(by) => format!("the run folder {folder} was taken over by {by}"),
        None => format!(
            "the file .lock in the run folder {folder} is missing: it or the folder was removed, \
             moved or replaced"
        ),
    }
}

impl From<datasets::DatasetError> for TrainError {
    fn from(error: datasets::DatasetError) -> Self {
        let limit = match &error {
            datasets::DatasetError::Spawn { source } => NoThreads::of(source),
            _ => None,
        };
        limit.map_or(Self::Data(error), Self::Threads)
    }
}

/// Advice about a lock whose holder may be gone.
fn left_behind(lock: &Path) -> String {
    format!(
        ". If that host is gone for good, a network file system may keep its lock: remove {}",
        lock.display()
    )
}

impl TrainError {
    pub(crate) fn run_dir(path: &Path) -> impl Fn(io::Error) -> Self {
        move |error| Self::RunDir {
            path: path.to_owned(),
            error,
        }
    }

    /// Whether a new start with the same arguments would fail too.
    pub fn is_usage(&self) -> bool {
        if let Self::Kernels(error) = self {
            return error.is_of_environment();
        }
        matches!(
            self,
            Self::Config(_)
                | Self::Misfit(_)
                | Self::OnlyImages(_)
                | Self::Refused(_)
                | Self::RunDirInUse { .. }
                | Self::RunDirLost { .. }
                | Self::RunDirTaken(_)
                | Self::RunDirJustTaken { .. }
                | Self::RunDirNotAFolder(_)
                | Self::RunDirNotShared { .. }
        )
    }

    /// Whether all ranks have this error at the same time, with the same message.
    pub fn is_same_on_all_ranks(&self) -> bool {
        matches!(
            self,
            Self::Diverged { .. }
                | Self::Skipped { .. }
                | Self::Misfit(_)
                | Self::ConfigDiffers { .. }
                | Self::DataDiffers { .. }
                | Self::OtherClasses(_)
                | Self::ModelDiffers { .. }
                | Self::Predict(_)
                | Self::Resume(_)
                | Self::RunDirNotShared { .. }
                | Self::NotSaved { .. }
                | Self::Refused(_)
                | Self::Parallel(ParallelError::LossScale(_))
        )
    }

    /// Whether this rank only reports the failure of another one.
    pub fn is_of_another_rank(&self) -> bool {
        self.elsewhere().is_some()
    }

    /// The failure of another rank that ended this one, if any.
    pub(crate) fn elsewhere(&self) -> Option<Elsewhere> {
        let error = match self {
            // While the ranks connect.
            Self::Dist(burn_dist::Error::Rendezvous(RendezvousError::Fault(fault))) => {
                return fault.rank.map(|rank| Elsewhere {
                    rank: Some(rank),
                    told: fault.to_string(),
                });
            }
            Self::Dist(error) => error.collective(),
            Self::Parallel(error) => error.collective(),
            _ => None,
        };
        let (rank, told) = error?.of_another_rank()?;
        Some(Elsewhere {
            rank,
            told: told.to_owned(),
        })
    }
}

/// The failure of another rank.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Elsewhere {
    /// The rank, or `None` for the launcher or the host of the store.
    pub rank: Option<usize>,
    /// The rank and its reason.
    pub told: String,
}
