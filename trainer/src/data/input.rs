//! Input of a rank: its images, their order, and their augmentation.

use std::sync::Arc;

use datasets::{Augment, Dataset, EvalSampler, Loader, TrainSampler};

use crate::config::{Batching, Config, EvalSet};
use crate::data::division::Division;
use crate::data::{self, Sets, Splits, balance};
use crate::error::TrainError;

/// Minimum batch size of evaluations.
pub(crate) const EVAL_BATCH: usize = 128;

/// The data, and each rank's share of it.
pub(crate) struct Input {
    pub sets: Sets,
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
    division: Division,
) -> Result<Input, TrainError> {
    let sets = match own {
        Some(own) => data::of_program(&config.data, own, config.train.seed)?,
        None => data::open(&config.data, config.train.seed)?,
    };
    let sets = to_overfit(config, batching.global, sets);
    let eval_batch = batching.micro.max(EVAL_BATCH);
    let mut eval_sampler = division.eval_sampler(sets.eval.len(), eval_batch)?;
    if let Some(batches) = config.train.limit_batches {
        eval_sampler = eval_sampler.limit(usize::try_from(batches).unwrap_or(usize::MAX));
    }
    Ok(Input {
        train_sampler: Some(train_sampler(config, batching, &sets, division)?),
        train_loader: train_loader(config, &sets)?,
        eval_loader: loader(config, &sets.eval)?,
        sets,
        eval_sampler,
    })
}

/// Opens the configured data for an evaluation on `evaluated`.
pub(crate) fn open_to_evaluate(
    config: &Config,
    evaluated: EvalSet,
    batching: Batching,
    division: Division,
) -> Result<Input, TrainError> {
    let sets = data::open_with(&config.data, config.train.seed, evaluated)?;
    let sets = to_overfit(config, batching.global, sets);
    Ok(Input {
        train_sampler: None,
        train_loader: train_loader(config, &sets)?,
        // Another batch of the training must not change the result.
        eval_sampler: division.eval_sampler(sets.eval.len(), EVAL_BATCH)?,
        eval_loader: loader(config, &sets.eval)?,
        sets,
    })
}

fn train_loader(config: &Config, sets: &Sets) -> Result<Loader, TrainError> {
    let loader = loader(config, &sets.train)?;
    Ok(loader.augment(augment(config), config.train.seed))
}

fn loader(config: &Config, dataset: &Arc<dyn Dataset>) -> Result<Loader, TrainError> {
    Ok(Loader::new(dataset.clone())?.workers(config.data.workers))
}

/// The configured data, or the few images of it that the model should overfit.
pub(crate) fn sets(config: &Config, global_batch: usize) -> Result<Sets, TrainError> {
    let sets = data::open(&config.data, config.train.seed)?;
    Ok(to_overfit(config, global_batch, sets))
}

fn to_overfit(config: &Config, global_batch: usize, sets: Sets) -> Sets {
    match config.train.overfit_batches {
        Some(batches) => sets.overfit(batches.saturating_mul(global_batch)),
        None => sets,
    }
}

/// Sampler of a rank's training images.
pub(crate) fn train_sampler(
    config: &Config,
    batching: Batching,
    sets: &Sets,
    division: Division,
) -> Result<TrainSampler, TrainError> {
    let samples = sets.train.len();
    let mut sampler = division.train_sampler(samples, batching, config.train.seed)?;
    if config.data.balance > 0.0 {
        let weights = balance::of_samples(sets.train.as_ref(), config.data.balance)?;
        sampler = sampler.weighted(&weights)?;
    }
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
