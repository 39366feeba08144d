//! Plans a run: its sizes, and the errors that it would fail with, without training.

use std::path::Path;

use burn::tensor::Device;
use burn_dist::parallel::{
    MemoryEstimate, Parallel, ParallelOptions, ParameterState, ShardWithin, Strategy,
};
use burn_dist::{ProcessGroup, VirtualRanks};
use models::weights::PyTorchKeys;

use crate::config::{Batching, Config, Loaded};
use crate::data::input;
use crate::error::TrainError;
use crate::system::{device, limits};
use crate::task::open::{Data, Input, Opening, WithTask};
use crate::task::{Items, Task, name_of_evaluated};
use crate::train::changes::{self, Before, Now};
use crate::train::progress::{Identity, Progress};
use crate::train::schedule::Schedule;
use crate::train::{freeze, initial, misfit, model, optimizer};
use crate::train::{parallel_options, restore};

/// Sizes of a planned run.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Trainable elements of the model.
    pub parameters: usize,
    /// Training state of each parameter.
    pub states: Vec<ParameterState>,
    /// Number of items.
    pub items: Items,
    /// Name of the items that training evaluates on: `val`, `test` or `train`.
    pub evaluated: &'static str,
    /// Name of the items in the plural.
    pub words: &'static str,
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
    let read_only = read_only(&config);
    let data = Data::open(&Opening::to_train(&read_only, batching, (0, size)))?;
    data.check()?;
    // Counting and filling a model works on any device.
    let device = Device::flex().autodiff();
    let look = Look {
        config: &config,
        batching,
        from: checkpoint,
    };
    let looked = data.build(&config, &device, look);
    let Looked {
        states,
        progress,
        items,
        evaluated,
        words,
    } = looked.map_err(|error| misfit::of_model(loaded, &error))??;
    let steps_per_epoch = input::steps_per_epoch(&config, items.train, batching.global);
    let now = Now {
        config: &config,
        ranks: size,
        items,
        schedule: &Schedule::of_run(&config, steps_per_epoch, batching).after(progress.seen),
    };
    let before = checkpoint.and_then(Before::of);
    let changed = before.and_then(|before| now.since(&before, progress.steps));
    Ok(Plan {
        parameters: states.iter().map(|state| state.elements as usize).sum(),
        states,
        items,
        evaluated,
        words,
        steps_per_epoch,
        batching,
        changes: changed.iter().flat_map(changes::say).collect(),
    })
}

/// The configuration, to open the data without writing files.
fn read_only(config: &Config) -> Config {
    let mut config = config.clone();
    config.data.read_only();
    config
}

/// Memory of the state on each of `size` ranks. `shared_by` ranks share one set of shards.
pub(crate) fn estimate(
    config: &Config,
    states: &[ParameterState],
    strategy: Strategy,
    (size, shared_by): (usize, usize),
) -> MemoryEstimate {
    let plain = MemoryEstimate::of(strategy, states, shared_by);
    let count = config.parallel.virtual_ranks;
    match count.and_then(|count| VirtualRanks::new(count, size).ok()) {
        Some(virtual_ranks) => plain.among(virtual_ranks, states),
        None => plain,
    }
}

/// A message if the state of `size` ranks on this host exceeds its free memory. Activations come on
/// top.
pub(crate) fn shortage(loaded: &Loaded, size: usize) -> Option<String> {
    let config = &loaded.config;
    let room = device::room(config, size, 1);
    let free = room.bytes.filter(|_| !room.on_gpu)?;
    let batching = loaded.batching(size).ok()?;
    let read_only = read_only(config);
    let data = Data::open(&Opening::to_train(&read_only, batching, (0, size))).ok()?;
    let device = Device::flex().autodiff();
    let states = data.build(config, &device, Count { config }).ok()?;
    let ranks = config.parallel.shard_within.ranks(size, 1);
    let strategy = parallel_options(config, 1).strategy;
    let needed = estimate(config, &states, strategy, (size, ranks)).total();
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

impl WithTask for Count<'_> {
    type Output = Vec<ParameterState>;

    fn call<T: Task>(self, _task: T, model: T::Model) -> Self::Output {
        model::states(&model, self.config)
    }
}

/// Checks that the run could restore and step the model.
struct Look<'a> {
    config: &'a Config,
    batching: Batching,
    from: Option<&'a Path>,
}

/// State, progress and items of a run.
struct Looked {
    states: Vec<ParameterState>,
    progress: Progress,
    items: Items,
    evaluated: &'static str,
    words: &'static str,
}

impl WithTask for Look<'_> {
    type Output = Result<Looked, TrainError>;

    fn call<T: Task>(self, task: T, model: T::Model) -> Self::Output
    where
        T::Model: PyTorchKeys,
    {
        let (config, items) = (self.config, task.items());
        Schedule::check(&config.schedule, items.eval)?;
        task.check(&model)?;
        let model = freeze::apply(model, config)?;
        let parameters = model::parameters(&model);
        optimizer::check(&config.optimizer, &parameters)?;
        let states = model::states(&model, config);
        let looked = |progress| Looked {
            states,
            progress,
            items,
            evaluated: name_of_evaluated(&task, config),
            words: T::WORDS.items,
        };
        let Some(path) = self.from else {
            initial::load(model, config)?;
            return Ok(looked(Progress::start()));
        };
        // A checkpoint fits any strategy and number of ranks.
        let options = ParallelOptions {
            strategy: Strategy::Ddp,
            shard_within: ShardWithin::All,
            virtual_ranks: None,
            ..parallel_options(config, 1)
        };
        let optimizer = optimizer::build(&config.optimizer, &parameters);
        let mut parallel = Parallel::new(model, optimizer, options, &ProcessGroup::single())?;
        let identity = Identity::of(config, self.batching, &task);
        restore::<T>(&mut parallel, path, &identity, config).map(looked)
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
