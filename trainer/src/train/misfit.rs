//! Adds the place of the key to configuration errors that show only with the data or the model.
//!
//! They then look like errors found while the file is parsed.

use std::io::ErrorKind;

use burn_dist::parallel::ParallelError;
use datasets::{DatasetError, SamplerError};
use models::ModelError;
use models::weights::WeightsError;

use crate::config::Loaded;
use crate::error::TrainError;

/// Adds to `error` the place of the key at fault, if a key is.
///
/// A model that the caller has built gives errors that do not concern the configuration.
/// [`of_model`] handles errors of `[model]`.
pub(crate) fn locate(loaded: &Loaded, error: TrainError) -> TrainError {
    match &error {
        // Nodes have their own files, and only rank 0 reads the weights.
        TrainError::Data(data) => match data_keys(loaded, data) {
            Some(keys) => TrainError::Config(loaded.blame(keys, data)),
            None => error,
        },
        TrainError::Initial(initial) => {
            TrainError::Config(loaded.blame(&["model.weights"], initial))
        }
        TrainError::Sampler(sampler) => {
            TrainError::Misfit(loaded.blame(sampler_keys(sampler), sampler))
        }
        TrainError::DataOnDevice => TrainError::Misfit(loaded.blame(&["data.on_device"], &error)),
        TrainError::OneValue { .. } => TrainError::Misfit(loaded.blame(
            &[
                "train.micro_batch_size",
                "train.accumulate",
                "train.batch_size",
            ],
            &error,
        )),
        TrainError::OwnTask => TrainError::Misfit(loaded.blame(&["task.name"], &error)),
        TrainError::NoEvaluation { .. } => {
            TrainError::Misfit(loaded.blame(&["schedule.name"], &error))
        }
        TrainError::OtherClasses(_) => {
            TrainError::Misfit(loaded.blame(&["data.dir", "data.name"], &error))
        }
        TrainError::NothingFrozen { .. } | TrainError::AllFrozen => {
            TrainError::Misfit(loaded.blame(&["model.freeze"], &error))
        }
        TrainError::GroupTaken { .. } => {
            TrainError::Misfit(loaded.blame(&["optimizer.groups"], &error))
        }
        TrainError::Parallel(parallel @ ParallelError::EmptyGroup { group, .. }) => {
            let own = loaded.config.optimizer.kind.key_of(group);
            let key = own.unwrap_or("optimizer.groups");
            TrainError::Misfit(loaded.blame(&[key], parallel))
        }
        _ => error,
    }
}

/// The error for a `[model]` that cannot be built, with the place of the key.
pub(crate) fn of_model(loaded: &Loaded, error: &ModelError) -> TrainError {
    let key = match error {
        ModelError::Zero { field, .. } | ModelError::Dropout { field, .. } => field,
        ModelError::Depth { .. } | ModelError::TooDeep { .. } => "depth",
        ModelError::Heads { .. } => "heads",
        ModelError::Patch { .. } => "patch",
        ModelError::Halves { .. } => "levels",
        ModelError::ImageTooSmall { .. }
        | ModelError::TooLarge { .. }
        | ModelError::OtherTask { .. } => "name",
    };
    let keys = [&format!("model.{key}"), "model.preset", "model.name"];
    TrainError::Misfit(loaded.blame(&keys, error))
}

/// Like [`locate`] for a model filled from a checkpoint or a weights file.
///
/// That may belong to another configuration. The most likely cause is a `--set` of the model.
pub(crate) fn of_checkpoint(loaded: &Loaded, error: TrainError) -> TrainError {
    match &error {
        TrainError::Parallel(restore @ ParallelError::Restore { .. }) => {
            let set = loaded.last_set("model").unwrap_or("model.name");
            TrainError::Misfit(loaded.blame(&[set, "model.name"], restore))
        }
        TrainError::OtherNormalization { .. } => {
            TrainError::Misfit(loaded.blame(&["data.mean", "data.std", "data.name"], &error))
        }
        TrainError::Weights(weights @ WeightsError::Mismatch { .. }) => {
            let set = loaded.last_set("model").unwrap_or("model.name");
            TrainError::Misfit(loaded.blame(&[set, "model.name"], weights))
        }
        _ => locate(loaded, error),
    }
}

/// Keys that may be at fault for unusable data, the likeliest first. `None` for damaged files and
/// folders that no key names.
fn data_keys(loaded: &Loaded, error: &DatasetError) -> Option<&'static [&'static str]> {
    let dir = loaded.config.data.kind.dir();
    match error {
        DatasetError::Io { path, source, .. } => {
            let absent = source.kind() == ErrorKind::NotFound && dir == Some(path);
            absent.then_some(&["data.dir"])
        }
        DatasetError::Missing { .. } | DatasetError::Impostor { .. } => {
            dir.is_some().then_some(&["data.dir"])
        }
        DatasetError::Layout { .. }
        | DatasetError::Classes { .. }
        | DatasetError::Images { usable: 0, .. } => Some(&["data.dir"]),
        DatasetError::MixedColor { .. } => Some(&["data.color", "data.dir"]),
        DatasetError::Settings {
            what: "data.mean", ..
        } => Some(&["data.mean"]),
        DatasetError::Settings {
            what: "data.std", ..
        } => Some(&["data.std"]),
        DatasetError::Settings {
            what: "data.name", ..
        } => Some(&["data.name"]),
        DatasetError::Settings {
            what: "data.validation",
            ..
        } => Some(&["data.validation"]),
        DatasetError::Settings {
            what: "data.evaluate",
            ..
        } => Some(&["data.evaluate"]),
        DatasetError::Settings {
            what: "train.class_weights",
            ..
        } => Some(&["train.class_weights"]),
        DatasetError::Settings { .. } => Some(&["data.size", "data.dir", "data.name"]),
        _ => None,
    }
}

fn sampler_keys(error: &SamplerError) -> &'static [&'static str] {
    match error {
        SamplerError::TooFew { .. } => &[
            "train.batch_size",
            "train.micro_batch_size",
            "data.train_samples",
            "data.dir",
            "data.name",
        ],
        _ => &["train.batch_size", "train.micro_batch_size"],
    }
}
