//! Input of a rank: its images, their order, and their augmentation.

use std::sync::Arc;

use datasets::{Augment, Dataset, EvalSampler, Loader, TrainSampler};

use crate::config::{Batching, Config};
use crate::data::{self, Splits};
use crate::error::TrainError;

/// Minimum batch size of evaluations.
pub(crate) const EVAL_BATCH: usize = 128;

/// The data, and each rank's share of it.
pub(crate) struct Input {
    pub splits: Splits,
    /// `None` if nothing is trained.
    pub train_sampler: Option<TrainSampler>,
    pub train_loader: Loader,
    pub eval_sampler: EvalSampler,
    pub eval_loader: Loader,
}

/// Opens the data and divides it among the ranks.
pub(crate) fn open(
    config: &Config,
    own: Option<&Splits>,
    batching: Batching,
    (rank, size): (usize, usize),
) -> Result<Input, TrainError> {
    let splits = match own {
        Some(own) => data::of_program(&config.data, own)?,
        None => data::open(&config.data, config.train.seed)?,
    };
    let splits = to_overfit(config, batching.global, splits);
    let eval_batch = batching.micro.max(EVAL_BATCH);
    let mut eval_sampler = EvalSampler::new(splits.test.len(), eval_batch, rank, size)?;
    if let Some(batches) = config.train.limit_batches {
        eval_sampler = eval_sampler.limit(usize::try_from(batches).unwrap_or(usize::MAX));
    }
    Ok(Input {
        train_sampler: Some(train_sampler(config, batching, &splits, (rank, size))?),
        train_loader: train_loader(config, &splits)?,
        eval_loader: loader(config, &splits.test)?,
        splits,
        eval_sampler,
    })
}

/// Opens the configured data for an evaluation.
pub(crate) fn open_to_evaluate(
    config: &Config,
    batching: Batching,
    (rank, size): (usize, usize),
) -> Result<Input, TrainError> {
    let splits = splits(config, batching.global)?;
    Ok(Input {
        train_sampler: None,
        train_loader: train_loader(config, &splits)?,
        // Another batch of the training must not change the result.
        eval_sampler: EvalSampler::new(splits.test.len(), EVAL_BATCH, rank, size)?,
        eval_loader: loader(config, &splits.test)?,
        splits,
    })
}

fn train_loader(config: &Config, splits: &Splits) -> Result<Loader, TrainError> {
    let loader = loader(config, &splits.train)?;
    Ok(loader.augment(augment(config), config.train.seed))
}

fn loader(config: &Config, dataset: &Arc<dyn Dataset>) -> Result<Loader, TrainError> {
    Ok(Loader::new(dataset.clone())?.workers(config.data.workers))
}

/// The configured data, or the few images of it that the model should overfit.
pub(crate) fn splits(config: &Config, global_batch: usize) -> Result<Splits, TrainError> {
    let splits = data::open(&config.data, config.train.seed)?;
    Ok(to_overfit(config, global_batch, splits))
}

fn to_overfit(config: &Config, global_batch: usize, splits: Splits) -> Splits {
    match config.train.overfit_batches {
        Some(batches) => splits.overfit(batches.saturating_mul(global_batch)),
        None => splits,
    }
}

/// Sampler of a rank's training images, for a world of that size.
pub(crate) fn train_sampler(
    config: &Config,
    batching: Batching,
    splits: &Splits,
    (rank, size): (usize, usize),
) -> Result<TrainSampler, TrainError> {
    let samples = splits.train.len();
    let (global, micro) = (batching.global, batching.micro);
    let sampler = TrainSampler::new(samples, global, micro, rank, size, config.train.seed)?;
    Ok(sampler.repeat(augment(config).repeat()))
}

/// Optimizer steps per epoch.
pub(crate) fn steps_per_epoch(config: &Config, items: usize, global_batch: usize) -> u64 {
    let all = (items / global_batch.max(1)) as u64;
    config
        .train
        .limit_batches
        .map_or(all, |limit| limit.min(all))
}

/// Augmentation of training images.
pub(crate) fn augment(config: &Config) -> Augment {
    match config.train.overfit_batches {
        Some(_) => Augment::default(),
        None => config.data.augment.clone(),
    }
}
