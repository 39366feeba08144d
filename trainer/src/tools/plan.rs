//! Plans a run: its sizes, and the errors that it would fail with, without training.

use std::path::Path;

use burn::tensor::Device;
use burn_dist::ProcessGroup;
use burn_dist::parallel::{
    MemoryEstimate, Parallel, ParallelOptions, ParameterState, ShardWithin, Strategy,
};
use datasets::{ImageShape, Loader};
use models::ImageClassifier;
use models::weights::PyTorchKeys;

use crate::config::{Batching, Config, Loaded, WithModel};
use crate::data::input;
use crate::error::TrainError;
use crate::system::{device, limits};
use crate::train::changes::{self, Before, Now};
use crate::train::progress::{Progress, Task};
use crate::train::schedule::Schedule;
use crate::train::{few_values, initial, misfit, model, optimizer};
use crate::train::{parallel_options, restore};

/// Sizes of a planned run.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Trainable elements of the model.
    pub parameters: usize,
    /// Training state of each parameter.
    pub states: Vec<ParameterState>,
    /// Training images.
    pub train_samples: usize,
    /// Test images.
    pub test_samples: usize,
    /// Optimizer steps per epoch.
    pub steps_per_epoch: u64,
    /// Batch sizes.
    pub batching: Batching,
    /// Changes since the checkpoint of the run, one line each. Empty if nothing has changed.
    pub changes: Vec<String>,
}

/// Checks everything that one process can check for a world of `size` ranks.
///
/// Opens and divides the data, builds the model, and restores `checkpoint`, if any.
///
/// # Errors
/// The errors that the run would fail with.
pub fn plan(loaded: &Loaded, size: usize, checkpoint: Option<&Path>) -> Result<Plan, TrainError> {
    try_plan(loaded, size, checkpoint).map_err(|error| misfit::locate(loaded, error))
}

fn try_plan(loaded: &Loaded, size: usize, checkpoint: Option<&Path>) -> Result<Plan, TrainError> {
    let mut config = loaded.config.clone();
    limits::apply(&mut config);
    let batching = loaded.batching(size)?;
    let splits = input::splits(&config, batching.global)?;
    let sampler = input::train_sampler(&config, batching, &splits, (0, size))?;
    if config.data.on_device == Some(true) {
        let loader = Loader::new(splits.train.clone())?;
        let changed = loader.augment(input::augment(&config), config.train.seed);
        if !changed.only_moves() {
            return Err(TrainError::DataOnDevice);
        }
    }
    // Counting and filling a model works on any device.
    let device = Device::flex().autodiff();
    let from = checkpoint.map(|path| (path, Task::of(&config, batching, &splits)));
    let look = Look {
        config: &config,
        batching,
        size,
        shape: splits.train.shape(),
        from,
    };
    Schedule::check(&config.schedule, splits.test.len())?;
    let (states, progress) = config
        .model
        .build(splits.train.as_ref(), &device, look)
        .map_err(|error| misfit::of_model(loaded, &error))??;
    let steps_per_epoch = input::steps_per_epoch(&config, &sampler);
    let now = Now {
        config: &config,
        ranks: size,
        splits: &splits,
        schedule: &Schedule::of_run(&config, steps_per_epoch, batching, size).after(progress.seen),
    };
    let before = checkpoint.and_then(Before::of);
    let changed = before.and_then(|before| now.since(&before, progress.steps));
    Ok(Plan {
        parameters: states.iter().map(|state| state.elements as usize).sum(),
        states,
        train_samples: splits.train.len(),
        test_samples: splits.test.len(),
        steps_per_epoch,
        batching,
        changes: changed.iter().flat_map(changes::say).collect(),
    })
}

/// A message if the state of `size` ranks on this host exceeds its free memory. Activations come on
/// top.
pub(crate) fn shortage(loaded: &Loaded, size: usize) -> Option<String> {
    let config = &loaded.config;
    let room = device::room(config, size, 1);
    let free = room.bytes.filter(|_| !room.on_gpu)?;
    let batching = loaded.batching(size).ok()?;
    let splits = input::splits(config, batching.global).ok()?;
    let device = Device::flex().autodiff();
    let count = Count { config };
    let states = config
        .model
        .build(splits.train.as_ref(), &device, count)
        .ok()?;
    let ranks = config.parallel.shard_within.ranks(size, 1);
    let strategy = parallel_options(config, 1).strategy;
    let needed = MemoryEstimate::of(strategy, &states, ranks).total();
    let mib = |bytes: u64| bytes.div_ceil(1 << 20);
    (needed > free).then(|| {
        format!(
            "out of memory: parameters, gradients and optimizer state need {} MiB on each rank, \
             plus activations, but {} MiB are free for each of {size}. Start fewer ranks, shard \
             the state (parallel.strategy), or train a smaller model",
            mib(needed),
            mib(free)
        )
    })
}

/// Lists the training state of each parameter without creating the parameters.
struct Count<'a> {
    config: &'a Config,
}

impl WithModel for Count<'_> {
    type Output = Vec<ParameterState>;

    fn call<M: ImageClassifier + PyTorchKeys>(self, model: M) -> Self::Output {
        model::states(&model, self.config)
    }
}

/// Checks that the run could restore and step the model. Returns the training state of its
/// parameters and the progress of the run.
struct Look<'a> {
    config: &'a Config,
    batching: Batching,
    size: usize,
    shape: ImageShape,
    from: Option<(&'a Path, Task)>,
}

impl WithModel for Look<'_> {
    type Output = Result<(Vec<ParameterState>, Progress), TrainError>;

    fn call<M: ImageClassifier + PyTorchKeys>(self, model: M) -> Self::Output {
        let config = self.config;
        few_values::check(config, self.batching, self.size, self.shape, &model)?;
        optimizer::check(&config.optimizer, &model::parameters(&model))?;
        let states = model::states(&model, config);
        let Some((path, task)) = self.from else {
            initial::load(model, config)?;
            return Ok((states, Progress::start()));
        };
        // A checkpoint fits any strategy and number of ranks.
        let options = ParallelOptions {
            strategy: Strategy::Ddp,
            shard_within: ShardWithin::All,
            ..parallel_options(config, 1)
        };
        let optimizer = optimizer::build(&config.optimizer);
        let mut parallel = Parallel::new(model, optimizer, options, &ProcessGroup::single())?;
        let progress = restore(&mut parallel, path, &task, config)?;
        Ok((states, progress))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_model_that_is_too_large_lacks_memory() {
        let load = |sets: &[&str]| {
            let sets: Vec<String> = sets.iter().map(|set| (*set).to_owned()).collect();
            Loaded::load("digits.toml", &sets).unwrap()
        };
        assert_eq!(shortage(&load(&[]), 2), None);
        // 12 × 65536² elements in each of 100 blocks, none of which is created.
        let huge = ["model={name=\"vit\", dim=65536, heads=64, depth=100, patch=7}"];
        let reason = shortage(&load(&huge), 2).unwrap();
        assert!(reason.contains("MiB on each rank"), "{reason}");
    }
}
