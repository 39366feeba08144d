//! Opens the configured task: its data, and a model for it.
//!
//! Each task is one line in the list below.

use burn::tensor::Device;
use burn_dist::ProcessGroup;
use datasets::{EvalSampler, SamplerError, TrainSampler};
use models::ModelError;
use models::weights::PyTorchKeys;

use super::{Task, classification, language, segmentation};
use crate::config::{Batching, Config, EvalSet, TaskKind};
use crate::data::division::Division;
use crate::data::{Splits, validation};
use crate::error::TrainError;

/// Configuration and rank for which a task is opened.
#[derive(Clone, Copy)]
pub struct Opening<'a> {
    /// The configuration.
    pub config: &'a Config,
    /// Batch sizes.
    pub batching: Batching,
    /// This rank.
    pub rank: usize,
    /// Number of ranks.
    pub size: usize,
    /// The data to evaluate on.
    pub evaluated: EvalSet,
    /// Whether nothing is trained.
    pub(crate) only_evaluates: bool,
    /// The caller's own images.
    pub(crate) images: Option<&'a Splits>,
}

impl<'a> Opening<'a> {
    /// Opens for a training on `size` ranks.
    pub(crate) fn to_train(
        config: &'a Config,
        batching: Batching,
        (rank, size): (usize, usize),
    ) -> Self {
        Self {
            config,
            batching,
            rank,
            size,
            evaluated: config.data.evaluated(),
            only_evaluates: false,
            images: None,
        }
    }

    /// This rank's part of the items.
    pub(crate) fn division(&self) -> Division {
        match self.only_evaluates {
            true => Division::of_ranks((self.rank, self.size)),
            false => Division::to_train(&self.config.parallel, (self.rank, self.size)),
        }
    }

    /// Sampler of this rank's items for training, out of `len`. With `parallel.virtual_ranks` they
    /// are those of its virtual ranks.
    ///
    /// # Errors
    /// Fails if there are fewer items than in a global batch.
    pub fn train_sampler(&self, len: usize) -> Result<TrainSampler, SamplerError> {
        let seed = self.config.train.seed;
        self.division().train_sampler(len, self.batching, seed)
    }

    /// Sampler of this rank's items for evaluation, out of `len`, in batches of `batch`.
    ///
    /// # Errors
    /// Fails if `batch` is 0.
    pub fn eval_sampler(&self, len: usize, batch: usize) -> Result<EvalSampler, SamplerError> {
        self.division().eval_sampler(len, batch)
    }

    /// Indices of items for training and for validation, both ascending; `None` without
    /// `data.validation`.
    ///
    /// `labels` has the class of each item, and the same share of each class is for validation. Use
    /// zeros for items without classes. The seed of the run selects the items, so all ranks get the
    /// same ones.
    ///
    /// # Errors
    /// Fails if no class has two items.
    pub fn held_out(&self, labels: &[u32]) -> Result<Option<[Vec<usize>; 2]>, TrainError> {
        let share = self.config.data.validation;
        let seed = self.config.train.seed;
        let parts = share.map(|share| validation::held_out(labels, share, seed));
        Ok(parts.transpose()?)
    }
}

/// The devices that data may go to.
pub(crate) struct Place<'a> {
    /// The device without autodiff.
    pub plain: &'a Device,
    /// The device with autodiff.
    pub training: &'a Device,
    /// Memory of a rank's share of the device in bytes, if known.
    pub memory: Option<u64>,
}

/// A use of a task and a model of any type.
pub(crate) trait WithTask {
    /// The result.
    type Output;

    /// Uses them.
    fn call<T: Task>(self, task: T, model: T::Model) -> Self::Output
    where
        T::Model: PyTorchKeys;
}

/// Data of a task, before its model is built.
pub(crate) trait Input {
    /// Checks that all ranks have the same data. A collective call.
    ///
    /// # Errors
    /// [`TrainError::DataDiffers`] on all ranks, if they differ.
    fn check_same(&self, group: &ProcessGroup) -> Result<(), TrainError>;

    /// Checks that the data can be where the configuration wants it.
    ///
    /// # Errors
    /// Fails if it cannot.
    fn check(&self) -> Result<(), TrainError> {
        Ok(())
    }

    /// Copies data to the device if it belongs there.
    ///
    /// # Errors
    /// Fails if it cannot be read, or cannot be there.
    fn bring(&mut self, _to: &Place<'_>) -> Result<(), TrainError> {
        Ok(())
    }
}

/// Defines the data of the built-in tasks.
macro_rules! tasks {
    ($($name:ident($input:ty),)*) => {
        /// Data of the configured task.
        pub(crate) enum Data { $($name(Box<$input>)),* }

        impl Data {
            /// Opens the data of the configured task. Downloads missing files if allowed.
            ///
            /// # Errors
            /// Fails if the data cannot be read or divided, or only a program knows the task.
            pub fn open(opening: &Opening<'_>) -> Result<Self, TrainError> {
                match &opening.config.task.kind {
                    $(TaskKind::$name(_) => Ok(Self::$name(Box::new(<$input>::open(opening)?))),)*
                    TaskKind::Own(_) => Err(TrainError::OwnTask),
                }
            }

            /// Builds the configured model with random parameters, and passes it to `then`.
            ///
            /// # Errors
            /// Fails if the model does not fit the data.
            pub fn build<W: WithTask>(
                self,
                config: &Config,
                device: &Device,
                then: W,
            ) -> Result<W::Output, ModelError> {
                match self { $(Self::$name(input) => input.build(config, device, then)),* }
            }
        }

        impl Input for Data {
            fn check_same(&self, group: &ProcessGroup) -> Result<(), TrainError> {
                match self { $(Self::$name(input) => input.check_same(group)),* }
            }

            fn check(&self) -> Result<(), TrainError> {
                match self { $(Self::$name(input) => input.check()),* }
            }

            fn bring(&mut self, to: &Place<'_>) -> Result<(), TrainError> {
                match self { $(Self::$name(input) => input.bring(to)),* }
            }
        }
    };
}

tasks! {
    Classification(classification::Images),
    Language(language::Texts),
    Segmentation(segmentation::Pictures),
}

/// A task that the caller has opened.
pub(crate) struct OwnTask<T>(pub T);

impl<T: Task> Input for OwnTask<T> {
    fn check_same(&self, group: &ProcessGroup) -> Result<(), TrainError> {
        self.0.check_same(group)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Loaded;

    #[test]
    fn a_share_is_held_out_if_it_is_configured() {
        let held_out = |sets: &[String], labels: &[u32]| {
            let loaded = Loaded::load("digits.toml", sets).unwrap();
            let batching = loaded.batching(1).unwrap();
            let opening = Opening::to_train(&loaded.config, batching, (0, 1));
            opening.held_out(labels)
        };
        let labels = [0, 1, 0, 1, 0, 1, 0, 1];
        assert_eq!(held_out(&[], &labels).unwrap(), None);
        let share = ["data.validation=0.25".to_owned()];
        let [train, val] = held_out(&share, &labels).unwrap().unwrap();
        assert_eq!((train.len(), val.len()), (6, 2));
        assert_ne!(labels[val[0]], labels[val[1]]);
        assert!(held_out(&share, &[0, 1]).is_err());
    }
}
