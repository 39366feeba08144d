//! Tasks: the data, the loss and the metrics of a training.
//!
//! A [`Task`] says how a batch gets to the device, what its loss is, and what an evaluation counts.
//! The training loop does everything else: ranks, precision, accumulation, checkpoints, resume,
//! early stopping, reports.
//!
//! | task | item | batch | weight of a loss | metrics |
//! |---|---|---|---|---|
//! | [`classification`] | image and class | images, labels | all alike | accuracy, top-5 accuracy |
//! | [`language`] | window of a text | tokens | tokens | perplexity, bits per byte |
//! | [`segmentation`] | image and mask | images, labels | pixels that count | mean IoU, pixel accuracy |
//!
//! Each is one folder, one file in `config/task`, and one line in `open.rs`.
//! [`Trainer::run_task`](crate::Trainer::run_task) trains any other.

mod batches;
pub mod classification;
pub mod language;
pub mod loss;
mod loss_sum;
pub(crate) mod open;
pub(crate) mod reading;
mod same;
pub mod segmentation;
mod split;

use burn::module::Module;
use burn::tensor::{Device, FloatDType, Tensor};
use burn_dist::ProcessGroup;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

pub use crate::config::EvalSet;
pub use crate::config::metric::{Better, Measure, Shown};
pub use crate::run::evaluation::{Evaluation, Metrics};
pub use crate::run::gallery::Gallery;
pub use loss_sum::LossSum;
pub use open::Opening;

use crate::config::Config;
use crate::error::TrainError;
use crate::run::environment::Environment;

/// A task: items, batches, a loss and metrics.
///
/// Every rank has the same task with its own share of the data. Ranks call all methods in the same
/// order.
pub trait Task: Sized {
    /// The model.
    type Model: Module;
    /// A batch in host memory.
    type HostBatch;
    /// A training batch on the device.
    type Batch;
    /// Batches of this rank, in order.
    type Batches: Iterator<Item = Result<Self::HostBatch, TrainError>>;
    /// Sums of an evaluation.
    type Sums: Sums;
    /// Content of `evaluation.json`.
    type Details: Details;

    /// Name of the task, in checkpoints and messages.
    const NAME: &'static str;
    /// Whether losses come with weights. If not, all micro-batches count alike, and a loss is a
    /// mean.
    const WEIGHTED: bool;
    /// Names of its items.
    const WORDS: Words;

    /// Metrics of an evaluation beside the loss. The first one is shown while training.
    fn measures(&self) -> &[Measure];

    /// Whether the losses of this task come with weights. Default: as all of its kind.
    fn is_weighted(&self) -> bool {
        Self::WEIGHTED
    }

    /// Number of items.
    ///
    /// An epoch has as many steps as global batches fit into the items for training.
    fn items(&self) -> Items;

    /// Whether the items for evaluation are for validation or test. Default test.
    ///
    /// A task that follows `data.validation` returns [`Opening::evaluated`], and divides its items
    /// with [`Opening::held_out`]. Another one cannot be trained with this key.
    fn evaluated(&self) -> EvalSet {
        EvalSet::Test
    }

    /// Tokens, pixels or other units in an item, for throughput. Default 1.
    fn units_per_item(&self) -> usize {
        1
    }

    /// Properties that a checkpoint keeps: another run with other ones cannot continue it.
    fn facts(&self) -> Facts;

    /// Compares the facts of a checkpoint, which may lack some, with its own.
    ///
    /// # Errors
    /// Fails if the checkpoint cannot be used, with the task's own message.
    fn compare(own: &Facts, stored: &Facts) -> Result<Option<Difference>, TrainError> {
        Ok(Difference::first(own, stored))
    }

    /// Adds properties of the data to `environment.json`.
    fn describe(&self, _environment: &mut Environment) {}

    /// Checks that the task can train `model`.
    ///
    /// # Errors
    /// Fails if it cannot.
    fn check(&self, _model: &Self::Model) -> Result<(), TrainError> {
        Ok(())
    }

    /// Checks that all ranks have the same data. A collective call.
    ///
    /// # Errors
    /// [`TrainError::DataDiffers`] on all ranks, if they differ.
    fn check_same(&self, _group: &ProcessGroup) -> Result<(), TrainError> {
        Ok(())
    }

    /// A warning about data that a model cannot learn from.
    fn warning(&self) -> Option<String> {
        None
    }

    /// Floating-point operations of the forward pass for one item, if known.
    fn flops(&self, _model: &Self::Model) -> Option<u64> {
        None
    }

    /// This rank's micro-batches of `epoch`, from 0, without the first `from_step` steps.
    fn train_batches(&self, epoch: usize, from_step: usize) -> Self::Batches;

    /// Copies a training batch to `device`.
    ///
    /// # Errors
    /// Fails if the batch is unusable.
    fn to_device(&self, batch: Self::HostBatch, device: &Device)
    -> Result<Self::Batch, TrainError>;

    /// Computes the loss of a micro-batch.
    ///
    /// `dtype` is the type in which the model computes. The loss is in f32, a sum over `weight` if
    /// the task [is weighted](Self::is_weighted), else a mean.
    fn loss(&self, model: &Self::Model, batch: Self::Batch, dtype: FloatDType) -> Loss;

    /// A batch of `items` items whose content does not matter.
    fn blank(&self, items: usize) -> Self::HostBatch;

    /// This rank's share of the items for evaluation, and the number of batches. Every item is in
    /// one batch of one rank.
    fn eval_batches(&self) -> (usize, Self::Batches);

    /// Empty sums.
    fn sums(&self) -> Self::Sums;

    /// Starts to evaluate a batch with a model that records no gradients.
    ///
    /// # Errors
    /// Fails if the device fails.
    fn score(
        &self,
        model: &Self::Model,
        batch: Self::HostBatch,
        on: Pass<'_>,
    ) -> Result<<Self::Sums as Sums>::Scored, TrainError>;

    /// Makes the details of an evaluation from sums over all ranks. A collective call.
    ///
    /// # Errors
    /// Fails if a rank fails.
    fn details(
        &self,
        sums: Self::Sums,
        evaluation: &Evaluation,
        group: &ProcessGroup,
    ) -> Result<Self::Details, TrainError>;
}

/// Sums of an evaluation that add up exactly, however the ranks share the items.
///
/// Counts are integers; losses are summed in `f64`.
pub trait Sums: Sized {
    /// Result of a batch that the device may still compute.
    type Scored;

    /// Waits for the result of a batch and adds it.
    ///
    /// # Errors
    /// Fails if the device fails.
    fn add(&mut self, scored: Self::Scored) -> Result<(), TrainError>;

    /// Adds the sums of the other ranks. A collective call.
    ///
    /// # Errors
    /// Fails if a rank fails.
    fn reduce(&mut self, group: &ProcessGroup) -> Result<(), TrainError>;

    /// The metrics.
    fn finish(&self) -> Evaluation;
}

/// Content of `evaluation.json`.
pub trait Details: Serialize {
    /// Sets the epoch and the step before the evaluation.
    fn set_moment(&mut self, epoch: u64, step: u64);

    /// Pictures of the evaluation for loggers. Default: none.
    fn gallery(&self) -> Gallery {
        Gallery::default()
    }
}

/// Details of an evaluation that has none but its metrics.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Plain {
    epoch: u64,
    step: u64,
    #[serde(flatten)]
    evaluation: Evaluation,
}

impl Plain {
    /// Makes details of the metrics.
    pub fn of(evaluation: &Evaluation) -> Self {
        Self {
            evaluation: evaluation.clone(),
            ..Self::default()
        }
    }
}

impl Details for Plain {
    fn set_moment(&mut self, epoch: u64, step: u64) {
        (self.epoch, self.step) = (epoch, step);
    }
}

/// Loss of a micro-batch.
#[derive(Debug)]
pub struct Loss {
    /// One element in f32: a sum over the weight, or a mean if the task has no weights.
    pub value: Tensor<1>,
    /// Samples, tokens or pixels; 1 if the task has no weights.
    pub weight: f64,
}

impl Loss {
    /// A mean, of a task without weights.
    pub fn mean(value: Tensor<1>) -> Self {
        Self { value, weight: 1.0 }
    }
}

/// Device and number format of a forward pass.
#[derive(Clone, Copy, Debug)]
pub struct Pass<'a> {
    /// The device, without autodiff.
    pub device: &'a Device,
    /// The type in which the model computes.
    pub dtype: FloatDType,
}

/// Number of items.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Items {
    /// For training.
    pub train: usize,
    /// For evaluation: for validation or test.
    pub eval: usize,
}

/// Names for messages, in the plural.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Words {
    /// Items, such as `images`.
    pub items: &'static str,
    /// Unit of throughput, such as `tokens`. Metrics name it `tokens_per_second`.
    pub units: &'static str,
    /// The samples that an evaluation counts, such as `tokens`.
    pub evaluated: &'static str,
}

/// Properties of a task in a checkpoint, by key.
pub type Facts = Map<String, Value>;

/// A difference between two tasks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Difference {
    /// Name of the property.
    pub name: String,
    /// Key or section of the configuration that sets it.
    pub key: String,
    /// Its value now.
    pub own: String,
    /// Its value in the checkpoint.
    pub stored: String,
}

impl Difference {
    /// The first property that both know and that differs. Its name is its key.
    pub fn first(own: &Facts, stored: &Facts) -> Option<Self> {
        let mut pairs = own
            .iter()
            .filter_map(|(key, own)| Some((key, own, stored.get(key)?)));
        let (key, own, stored) = pairs.find(|(_, own, stored)| own != stored)?;
        Some(Self {
            name: key.clone(),
            key: key.clone(),
            own: own.to_string(),
            stored: stored.to_string(),
        })
    }
}

/// Reads a fact of a known type. `None` if it is missing or null.
pub fn fact<T: DeserializeOwned>(facts: &Facts, key: &str) -> Option<T> {
    let value = facts.get(key).filter(|value| !value.is_null())?;
    serde_json::from_value(value.clone()).ok()
}

/// Name of the items that are evaluated: `val`, `test`, or `train` if the model should overfit.
pub(crate) fn name_of_evaluated<T: Task>(task: &T, config: &Config) -> &'static str {
    match config.train.overfit_batches {
        Some(_) => "train",
        None => task.evaluated().name(),
    }
}

/// Converts a device error in an evaluation.
pub(crate) fn not_computed(reason: String) -> TrainError {
    TrainError::NotComputed {
        what: "an evaluation".to_owned(),
        reason,
    }
}
