//! A run from its checked configuration to its summary: connects the ranks, prepares data and
//! model, and hands over to the training loop.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use burn::tensor::Device;
use burn_dist::group::{GroupOptions, ProcessGroup, TransportKind};
use burn_dist::world::World;
use datasets::{Dataset, EvalSampler, Loader, TrainSampler};
use models::ImageClassifier;

use crate::config::{Batching, Config, Loaded, TransportName};
use crate::data::{self, Splits};
use crate::error::TrainError;
use crate::model::WithModel;
use crate::resume::{Resume, Start};
use crate::train::{self, Summary};
use crate::{model, panics, seed};

/// Images that are evaluated at a time when micro-batches are smaller.
const EVAL_BATCH: usize = 128;

/// What the caller decides and the configuration does not.
#[derive(Clone, Debug, Default)]
pub struct RunOptions {
    /// The run folder; `runs/<name>-<time>` if not given.
    pub run_dir: Option<PathBuf>,
    /// What is continued.
    pub resume: Resume,
}

/// Everything a training loop needs, made by [`run`].
pub(crate) struct Session<'a> {
    pub config: &'a Config,
    /// Name of the run.
    pub name: &'a str,
    pub start: Start,
    pub world: &'a World,
    pub group: &'a ProcessGroup,
    pub batching: Batching,
    /// The device without autodiff.
    pub device: Device,
    pub data: Input,
}

/// Data, and who sees which part of it when.
pub(crate) struct Input {
    pub splits: Splits,
    pub train_sampler: TrainSampler,
    pub train_loader: Loader,
    pub eval_sampler: EvalSampler,
    pub eval_loader: Loader,
}

/// Trains as `loaded` says. Every rank of `world` calls it with the same configuration.
///
/// # Errors
/// Whatever ends the run before its time; the other ranks are told.
pub fn run(loaded: &Loaded, world: &World, options: &RunOptions) -> Result<Summary, TrainError> {
    let batching = loaded.batching(world.size())?;
    let group = connect(&loaded.config, world)?;
    panics::watch(&group);
    let outcome = train_on(&group, loaded, batching, world, options);
    outcome.inspect_err(|error| {
        // Who failed because another rank did has nothing to tell.
        if !error.is_of_another_rank() {
            group.abort(&error.to_string());
        }
    })
}

fn connect(config: &Config, world: &World) -> Result<ProcessGroup, TrainError> {
    let timeout = Duration::from_secs(config.parallel.timeout_seconds);
    let options = GroupOptions {
        transport: match config.parallel.transport {
            TransportName::Auto => TransportKind::Auto,
            TransportName::Shm => TransportKind::Shm,
            TransportName::Tcp => TransportKind::Tcp,
        },
        timeout,
        ..GroupOptions::default()
    };
    Ok(ProcessGroup::connect_with(world, options)?)
}

fn train_on(
    group: &ProcessGroup,
    loaded: &Loaded,
    batching: Batching,
    world: &World,
    options: &RunOptions,
) -> Result<Summary, TrainError> {
    let config = &loaded.config;
    let run_dir = options.run_dir.as_deref();
    let start = Start::find(&options.resume, run_dir, &loaded.name, group)?;
    let data = open_in_turn(config, batching, world, group)?;
    let session = Session {
        config,
        name: &loaded.name,
        start,
        world,
        group,
        batching,
        device: world.device(),
        data,
    };
    let device = session.device.clone().autodiff();
    device.seed(seed::of_parameters(config.train.seed));
    let data = session.data.splits.train.as_ref();
    model::build(&config.model, data, &device, Train(&session))?
}

/// Trains the model that is built.
struct Train<'s>(&'s Session<'s>);

impl WithModel for Train<'_> {
    type Output = Result<Summary, TrainError>;

    fn call<M: ImageClassifier>(self, model: M) -> Self::Output {
        train::train(self.0, model)
    }
}

/// One rank of each node gets the data and opens it before the others do: files are downloaded
/// once, and what is wrong with them is said once.
fn open_in_turn(
    config: &Config,
    batching: Batching,
    world: &World,
    group: &ProcessGroup,
) -> Result<Input, TrainError> {
    if world.local_rank() == 0 {
        data::prepare(&config.data)?;
        let input = open(config, batching, world)?;
        group.barrier()?;
        Ok(input)
    } else {
        group.barrier()?;
        open(config, batching, world)
    }
}

/// Opens the data and divides it among the ranks.
fn open(config: &Config, batching: Batching, world: &World) -> Result<Input, TrainError> {
    let (rank, size) = (world.rank(), world.size());
    let seed = config.train.seed;
    let splits = data::open(&config.data, seed)?;
    let train_sampler = TrainSampler::new(
        splits.train.len(),
        batching.global,
        batching.micro,
        rank,
        size,
        seed,
    )?;
    let eval_batch = batching.micro.max(EVAL_BATCH);
    let eval_sampler = EvalSampler::new(splits.test.len(), eval_batch, rank, size)?;
    let loader = |dataset: &Arc<dyn Dataset>| {
        Ok::<_, TrainError>(Loader::new(dataset.clone())?.workers(config.data.workers))
    };
    Ok(Input {
        train_loader: loader(&splits.train)?.augment(config.data.augment.clone(), seed),
        eval_loader: loader(&splits.test)?,
        splits,
        train_sampler,
        eval_sampler,
    })
}

/// What a run would be, found out without training.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Trainable elements of the model.
    pub parameters: usize,
    /// Images to learn from.
    pub train_samples: usize,
    /// Images for evaluation.
    pub test_samples: usize,
    /// Optimizer steps in one epoch.
    pub steps_per_epoch: u64,
    /// Batch sizes.
    pub batching: Batching,
}

/// Checks all that can be checked without the other ranks of a world of `size`: opens the data,
/// divides it, and builds the model.
///
/// # Errors
/// What [`run`] would fail with.
pub fn plan(loaded: &Loaded, size: usize) -> Result<Plan, TrainError> {
    let config = &loaded.config;
    let batching = loaded.batching(size)?;
    let splits = data::open(&config.data, config.train.seed)?;
    let samples = splits.train.len();
    let sampler = TrainSampler::new(
        samples,
        batching.global,
        batching.micro,
        0,
        size,
        config.train.seed,
    )?;
    let device = World::single().device().autodiff();
    let parameters = model::build(&config.model, splits.train.as_ref(), &device, Count)?;
    Ok(Plan {
        parameters,
        train_samples: samples,
        test_samples: splits.test.len(),
        steps_per_epoch: sampler.steps_per_epoch() as u64,
        batching,
    })
}

/// Counts the trainable elements of the model that is built.
struct Count;

impl WithModel for Count {
    type Output = usize;

    fn call<M: ImageClassifier>(self, model: M) -> usize {
        model::num_parameters(&model)
    }
}
