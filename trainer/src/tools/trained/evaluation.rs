//! Evaluates a trained model on any number of ranks.

use burn::tensor::{DType, Device};
use burn_dist::parallel::{Precision, autocast};
use burn_dist::world::World;
use burn_dist::{ProcessGroup, ReduceOp};
use datasets::{Dataset, EvalSampler, Loader};
use models::ImageClassifier;

use super::{Trained, WithTrained};
use crate::config::ConfigError;
use crate::data;
use crate::data::input::{self, EVAL_BATCH};
use crate::data::same_data;
use crate::error::TrainError;
use crate::eval::details::Details;
use crate::eval::evaluate::{Evaluated, Evaluator, not_computed, within_range};
use crate::eval::evaluation::Evaluation;
use crate::run::group;
use crate::system::output::complain;

/// Message and advice if no data is configured.
const NO_DATA: &str = "does not name the data for its evaluation. Name a configuration with \
                       --config, or the data with --set data.name=... and --set data.dir=...";

impl Trained {
    /// Evaluates the model on the images that its training evaluates.
    ///
    /// These are the configured test images, or the few images of `train.overfit_batches`. Every
    /// rank of `world` makes this call. All ranks get the overall result, and rank 0 the overall
    /// details.
    ///
    /// # Errors
    /// Fails if the data cannot be read, the checkpoint belongs to another model, or a rank fails.
    pub fn evaluate(&self, world: &World) -> Result<(Evaluation, Details), TrainError> {
        self.evaluate_if(world, || Ok(()))
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
        ready: impl FnOnce() -> Result<(), TrainError>,
    ) -> Result<(Evaluation, Details), TrainError> {
        self.check_has_data()?;
        group::with_group(self.config(), world, |group| {
            ready()?;
            let evaluated = self.evaluate_in(world, group);
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
        group: &ProcessGroup,
    ) -> Result<(Evaluation, Details), TrainError> {
        let config = self.config();
        let test = group::in_turn(world, group, || {
            data::prepare(&config.data)?;
            Ok(input::splits(config, self.trained_batch()?)?.test)
        })?;
        same_data::check(&[test.as_ref()], group)?;
        let device = crate::system::device::choose(config, world)?.device;
        let evaluate = Evaluate {
            dataset: test.as_ref(),
            loader: Loader::new(test.clone())?.workers(config.data.workers),
            sampler: EvalSampler::new(test.len(), EVAL_BATCH, world.rank(), world.size())?,
            device: &device,
            precision: self.precision_on(&device, group)?,
            group,
        };
        self.with_model(test.as_ref(), &device, evaluate)
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

    /// Images per training step, whatever the number of ranks now.
    fn trained_batch(&self) -> Result<usize, TrainError> {
        let configured = || Ok(self.loaded.batching(1)?.global);
        self.global_batch.map_or_else(configured, Ok)
    }
}

struct Evaluate<'a> {
    dataset: &'a dyn Dataset,
    loader: Loader,
    sampler: EvalSampler,
    device: &'a Device,
    precision: Precision,
    group: &'a ProcessGroup,
}

impl WithTrained for Evaluate<'_> {
    type Output = (Evaluation, Details);

    fn call<M: ImageClassifier>(self, model: M) -> Result<Self::Output, TrainError> {
        let evaluated = within_range(self.precision, self.group, |precision| {
            self.evaluated(&model, precision)
        })?;
        evaluated.ok_or_else(|| not_computed("the evaluation was interrupted".to_owned()))
    }
}

impl Evaluate<'_> {
    fn evaluated<M: ImageClassifier>(
        &self,
        model: &M,
        precision: Precision,
    ) -> Result<Option<Evaluated>, TrainError> {
        let evaluator = Evaluator {
            dataset: self.dataset,
            loader: &self.loader,
            resident: None,
            sampler: &self.sampler,
            device: self.device,
            precision,
            group: self.group,
            together: false,
        };
        // A clone would share the running statistics.
        evaluator.evaluate(&autocast(model.valid(), precision)?, None)
    }
}
