//! Evaluates a trained model on any number of ranks.

use burn::module::Module;
use burn::tensor::{DType, Device};
use burn_dist::parallel::{Precision, autocast};
use burn_dist::world::World;
use burn_dist::{ProcessGroup, ReduceOp};
use models::weights::PyTorchKeys;
use serde_json::Value;

use super::{Trained, Values};
use crate::config::{Batching, Config, ConfigError, EvalSet};
use crate::error::TrainError;
use crate::eval::evaluate::{Evaluator, within_range};
use crate::run::group;
use crate::system::compute;
use crate::system::output::complain;
use crate::task::open::{Data, Input, Opening, WithTask};
use crate::task::{Details, Evaluation, Task, name_of_evaluated, not_computed};
use crate::train::{bf16_path, misfit};

/// Message and advice if no data is configured.
const NO_DATA: &str = "does not name the data for its evaluation. Name a configuration with \
                       --config, or the data with --set data.name=... and --set data.dir=...";

impl Trained {
    /// Evaluates the model on this data, or the few items of `train.overfit_batches`.
    ///
    /// Every rank of `world` makes this call. All ranks get the overall result, and rank 0 the
    /// overall details.
    ///
    /// # Errors
    /// Fails if the data cannot be read, the checkpoint belongs to another model, or a rank fails.
    pub fn evaluate(&self, world: &World, on: EvalSet) -> Result<TrainedEvaluation, TrainError> {
        self.evaluate_if(world, on, || Ok(()))
    }

    /// Does [`Trained::evaluate`] if the caller is `ready`.
    ///
    /// If this rank is not, it tells the others.
    ///
    /// # Errors
    /// As [`Trained::evaluate`], and the error of `ready`.
    pub fn evaluate_if(
        &self,
        world: &World,
        on: EvalSet,
        ready: impl FnOnce() -> Result<(), TrainError>,
    ) -> Result<TrainedEvaluation, TrainError> {
        self.check_has_data()?;
        group::with_group(self.config(), world, |group| {
            ready()?;
            self.check_same(group)?;
            let evaluated = self.evaluate_in(world, on, group);
            evaluated.map_err(|error| self.locate(error))
        })
    }

    /// Checks that the configuration names data to evaluate on.
    ///
    /// # Errors
    /// Fails if the only configuration is that of a weights file.
    pub fn check_has_data(&self) -> Result<(), ConfigError> {
        match self.has_data {
            true => Ok(()),
            false => Err(ConfigError::new(
                format!("{} {NO_DATA}", self.path.display()),
                None,
            )),
        }
    }

    fn evaluate_in(
        &self,
        world: &World,
        on: EvalSet,
        group: &ProcessGroup,
    ) -> Result<TrainedEvaluation, TrainError> {
        let config = self.config();
        let batching = Batching {
            global: self.trained_batch()?,
            ..self.loaded.batching(1)?
        };
        let opening = Opening {
            evaluated: on,
            only_evaluates: true,
            ..Opening::to_train(config, batching, (world.rank(), world.size()))
        };
        let data = group::in_turn(world, group, || Data::open(&opening))?;
        data.check_same(group)?;
        let device = crate::system::device::choose(config, world)?.device;
        compute::choose_kernels(config, &device)?;
        bf16_path::agree(config, &device, group, None)?;
        let values = match &data {
            Data::Classification(images) => self.values(images.eval())?,
            _ => self.values_for_any()?,
        };
        let evaluate = Evaluate {
            config,
            values,
            moment: (self.epoch, self.step.unwrap_or_default()),
            device: &device,
            precision: self.precision_on(&device, group)?,
            group,
        };
        let built = data.build(config, &device, evaluate);
        built.map_err(|error| misfit::of_model(&self.loaded, &error))?
    }

    /// The configured precision, or `f32` if a rank's device lacks it.
    ///
    /// The run may have used other devices. A collective call.
    fn precision_on(&self, device: &Device, group: &ProcessGroup) -> Result<Precision, TrainError> {
        let wanted = self.config().train.eval_precision();
        let dtype = wanted.compute_dtype();
        let mut supported = [i64::from(device.supports_dtype(DType::from(dtype)))];
        group.all_reduce(&mut supported, ReduceOp::Min)?;
        if supported == [1] {
            return Ok(wanted);
        }
        if group.rank() == 0 {
            complain(&format!(
                "warning: the device does not support {}, evaluating in f32",
                wanted.name()
            ));
        }
        Ok(Precision::F32)
    }

    /// Items per training step, whatever the number of ranks now.
    fn trained_batch(&self) -> Result<usize, TrainError> {
        let configured = || Ok(self.loaded.batching(1)?.global);
        self.global_batch.map_or_else(configured, Ok)
    }
}

/// Evaluation of a trained model.
#[derive(Clone, Debug)]
pub struct TrainedEvaluation {
    /// The metrics.
    pub evaluation: Evaluation,
    /// Details, in the form of `evaluation.json`. Complete on rank 0.
    pub details: Value,
    /// Name of the evaluated data: `val`, `test`, or `train` if the model should overfit.
    pub set: &'static str,
    /// The metrics in one line.
    pub line: String,
}

/// Evaluates a model once it is filled.
struct Evaluate<'a> {
    config: &'a Config,
    values: Values<'a>,
    /// Epoch and step of the model.
    moment: (u64, u64),
    device: &'a Device,
    precision: Precision,
    group: &'a ProcessGroup,
}

impl WithTask for Evaluate<'_> {
    type Output = Result<TrainedEvaluation, TrainError>;

    fn call<T: Task>(self, task: T, model: T::Model) -> Self::Output
    where
        T::Model: PyTorchKeys,
    {
        let model = self.values.fill(model)?;
        let evaluated = within_range(self.precision, self.group, |precision| {
            let evaluator = Evaluator {
                task: &task,
                device: self.device,
                precision,
                group: self.group,
                together: false,
            };
            // A clone would share the running statistics.
            evaluator.evaluate(&autocast(model.valid(), precision)?, None)
        })?;
        let Some((evaluation, mut details)) = evaluated else {
            return Err(not_computed("the evaluation was interrupted".to_owned()));
        };
        let (epoch, step) = self.moment;
        details.set_moment(epoch, step);
        let set = name_of_evaluated(&task, self.config);
        Ok(TrainedEvaluation {
            set,
            line: line(&task, set, &evaluation),
            details: serde_json::to_value(&details).unwrap_or_default(),
            evaluation,
        })
    }
}

/// The metrics in one line.
fn line<T: Task>(task: &T, set: &str, evaluation: &Evaluation) -> String {
    let mut line = format!("loss {:.4}", evaluation.loss);
    for measure in task.measures() {
        if let Some(value) = evaluation.metric(&measure.name) {
            line += &format!(", {} {}", measure.label, measure.shown.text(value));
        }
    }
    line + &format!(", {} {set} {}", evaluation.samples, T::WORDS.evaluated)
}
