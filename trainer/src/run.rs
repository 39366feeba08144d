//! A run from its checked configuration to its summary: connects the ranks, prepares data and
//! model, and hands over to the training loop.

use std::path::PathBuf;
use std::sync::{Arc, OnceLock};

use burn::tensor::Device;
use burn_dist::ProcessGroup;
use burn_dist::device::{ChosenDevice, Sharing};
use burn_dist::world::World;
use datasets::{Augment, Dataset, EvalSampler, Loader, TrainSampler};
use models::weights::{PyTorchKeys, WeightsError};
use models::{ImageClassifier, ModelError};

use crate::callback::Callback;
use crate::config::{Batching, Config, DataName, Loaded, StrategyName};
use crate::console;
use crate::data::{self, Splits};
use crate::device_data::{self, DeviceData, place};
use crate::error::TrainError;
use crate::initial::Initial;
use crate::model::WithModel;
use crate::resume::{Resume, Start};
use crate::signals::Beginning;
use crate::train::{self, Summary};
use crate::{compute, device, group, initial, limits, misfit, model, run_log, same_data, seed};

/// Images that are evaluated at a time when micro-batches are smaller.
pub(crate) const EVAL_BATCH: usize = 128;

/// Everything a training loop needs, made by [`Trainer`].
pub(crate) struct Session<'a> {
    pub config: &'a Config,
    /// Name of the run.
    pub name: &'a str,
    pub start: Start,
    pub world: &'a World,
    pub group: &'a ProcessGroup,
    pub batching: Batching,
    /// Whether there is to be a full screen.
    pub dashboard: bool,
    /// The device without autodiff, and why it is this one.
    pub device: ChosenDevice,
    /// How the ranks share their devices.
    pub sharing: Sharing,
    pub data: Input,
    /// The weights that the run started from, and what there is to say of them; on the main rank.
    pub initial: OnceLock<(Initial, Vec<String>)>,
    /// The images that lie on the device.
    pub resident: Resident,
}

/// Which images lie on the device.
#[derive(Default)]
pub(crate) struct Resident {
    pub train: Option<DeviceData>,
    pub test: Option<DeviceData>,
}

/// Data, and who sees which part of it when.
pub(crate) struct Input {
    pub splits: Splits,
    pub train_sampler: TrainSampler,
    pub train_loader: Loader,
    pub eval_sampler: EvalSampler,
    pub eval_loader: Loader,
}

/// A run that is about to start: what its configuration says, and what the caller adds.
///
/// Every rank of the world makes the same one.
///
/// ```no_run
/// use burn_dist::world::World;
/// use trainer::Trainer;
/// use trainer::config::Loaded;
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let loaded = Loaded::load("mnist-cnn.toml", &["train.epochs=2".to_owned()])?;
/// let world = World::from_env()?;
/// let summary = Trainer::new(&loaded, &world).run_dir("runs/first").run()?;
/// println!("{:?}", summary.evaluation);
/// # Ok(())
/// # }
/// ```
pub struct Trainer<'a> {
    loaded: &'a Loaded,
    world: &'a World,
    run_dir: Option<PathBuf>,
    resume: Resume,
    data: Option<Splits>,
    callbacks: Vec<Box<dyn Callback>>,
    dashboard: bool,
}

impl<'a> Trainer<'a> {
    /// Trains as `loaded` says, on the ranks of `world`.
    pub fn new(loaded: &'a Loaded, world: &'a World) -> Self {
        Self {
            loaded,
            world,
            run_dir: None,
            resume: Resume::Off,
            data: None,
            callbacks: Vec::new(),
            dashboard: false,
        }
    }

    /// The folder of the run; `runs/<name>-<time>` if not given.
    pub fn run_dir(mut self, folder: impl Into<PathBuf>) -> Self {
        self.run_dir = Some(folder.into());
        self
    }

    /// What the run continues; nothing if not given.
    pub fn resume(mut self, resume: Resume) -> Self {
        self.resume = resume;
        self
    }

    /// Images of the caller's own, for a configuration with `data.name = "own"`; its other keys apply to them, such as
    /// `data.augment`. Every rank brings the same ones: which of them it reads is decided here.
    pub fn data(mut self, splits: Splits) -> Self {
        self.data = Some(splits);
        self
    }

    /// Adds a callback, called after those that were added before.
    pub fn callback(mut self, callback: impl Callback + 'static) -> Self {
        self.callbacks.push(Box::new(callback));
        self
    }

    /// Shows the run on a full screen, if this is the main rank and there is a terminal.
    pub fn dashboard(mut self, wanted: bool) -> Self {
        self.dashboard = wanted;
        self
    }

    /// Trains the model that the configuration names.
    ///
    /// # Errors
    /// Whatever ends the run before its time; the other ranks are told. With several ranks this process ends
    /// `parallel.abort_seconds` after that at the latest, whatever it does then.
    pub fn run(self) -> Result<Summary, TrainError> {
        let loaded = self.loaded;
        let config = loaded.config.model.clone();
        self.go(|session, device, callbacks| {
            let data = session.data.splits.train.as_ref();
            let then = Train { session, callbacks };
            model::build(&config, data, device, then)
                .map_err(|error| misfit::of_model(loaded, &error))?
        })
    }

    /// Trains a model of the caller's, which `build` makes on the given device for images and
    /// classes like those of the given data; `[model]` of the configuration is not looked at.
    ///
    /// # Errors
    /// As [`run`](Self::run).
    pub fn run_model<M: ImageClassifier>(
        self,
        build: impl FnOnce(&Device, &dyn Dataset) -> Result<M, ModelError>,
    ) -> Result<Summary, TrainError> {
        self.go(|session, device, callbacks| {
            let model = build(device, session.data.splits.train.as_ref())?;
            train::train(session, model, callbacks)
        })
    }

    fn go(
        self,
        then: impl FnOnce(&Session<'_>, &Device, Vec<Box<dyn Callback>>) -> Result<Summary, TrainError>,
    ) -> Result<Summary, TrainError> {
        let _beginning = Beginning::start();
        console::never_wait();
        let (loaded, world) = (self.loaded, self.world);
        let mut config = loaded.config.clone();
        limits::apply(&mut config);
        let batching = loaded.batching(world.size())?;
        let work = |group: &ProcessGroup| {
            let run_dir = self.run_dir.as_deref();
            let writes = !config.train.fast_dev_run;
            let start = Start::find(&self.resume, run_dir, &loaded.name, writes, group)?;
            let chosen = device::choose(&config, world)?;
            let mut session = Session {
                config: &config,
                name: &loaded.name,
                start,
                world,
                group,
                batching,
                dashboard: self.dashboard,
                sharing: chosen.sharing(group)?,
                device: chosen,
                data: group::in_turn(world, group, || {
                    data::prepare(&config.data)?;
                    open(&config, self.data.as_ref(), batching, world)
                })?,
                initial: OnceLock::new(),
                resident: Resident::default(),
            };
            let splits = &session.data.splits;
            same_data::check(&[splits.train.as_ref(), splits.test.as_ref()], group)?;
            let device = training_device(&session);
            compute::choose_kernels(&config, &device)?;
            session.resident = bring_data(&session, &device)?;
            device.seed(seed::of_parameters(config.train.seed));
            then(&session, &device, self.callbacks)
        };
        let outcome = group::with_group(&config, world, |group| {
            let outcome = work(group).map_err(|error| misfit::locate(loaded, error));
            run_log::finish(&outcome);
            outcome
        });
        console::flush();
        outcome
    }
}

/// Brings the images to the device that are to be there: those of the training to `device`, which has autodiff.
fn bring_data(session: &Session<'_>, device: &Device) -> Result<Resident, TrainError> {
    let (plain, data) = (&session.device.device, &session.data);
    let (train, test) = (data.splits.train.as_ref(), data.splits.test.as_ref());
    let total = session
        .device
        .cuda
        .and_then(burn_dist::device::device_memory)
        .map(|total| total / session.sharing.ranks.max(1) as u64);
    let possible = data.train_loader.only_moves();
    let on_device = session.config.data.on_device;
    if on_device == Some(true) && !possible {
        return Err(TrainError::DataOnDevice);
    }
    let is_gpu = !burn_dist::device::is_host(plain);
    // Of a folder all images would have to be decoded before the first step.
    let name = session.config.data.name;
    let is_stored = !matches!(name, DataName::ImageFolder | DataName::Own);
    let bytes = [train, test].map(|images| device_data::size(images, plain));
    let usual = is_gpu && is_stored;
    let [brings_train, brings_test] = place(on_device, usual, possible, bytes, total);
    let train = || DeviceData::upload(train, &data.train_loader, device);
    let test = || DeviceData::upload(test, &data.eval_loader, plain);
    Ok(Resident {
        train: brings_train.then(train).transpose()?,
        test: brings_test.then(test).transpose()?,
    })
}

/// The device with autodiff as the configuration wants it.
pub(crate) fn training_device(session: &Session<'_>) -> Device {
    autodiff(&session.device.device, session.config)
}

/// `device` with autodiff. Where parameters are gathered, they and what is made of them must not be
/// kept for backward.
pub(crate) fn autodiff(device: &Device, config: &Config) -> Device {
    let device = device.clone().autodiff();
    if config.train.recompute || config.parallel.strategy == StrategyName::Zero3 {
        device.gradient_checkpointing()
    } else {
        device
    }
}

/// Trains the model that is built.
struct Train<'s> {
    session: &'s Session<'s>,
    callbacks: Vec<Box<dyn Callback>>,
}

impl WithModel for Train<'_> {
    type Output = Result<Summary, TrainError>;

    fn call<M: ImageClassifier + PyTorchKeys>(self, model: M) -> Self::Output {
        let session = self.session;
        // The others get those of rank 0, and a checkpoint has its own.
        let model = match session.group.rank() == 0 && session.start.checkpoint.is_none() {
            true => self.start_from_weights(model)?,
            false => model,
        };
        train::train(session, model, self.callbacks)
    }
}

impl Train<'_> {
    /// The model with the weights that the configuration names; the session takes note of them.
    fn start_from_weights<M: ImageClassifier + PyTorchKeys>(
        &self,
        model: M,
    ) -> Result<M, TrainError> {
        let session = self.session;
        let (model, taken) = initial::load(model, session.config)?;
        if let (Some(path), Some(taken)) = (session.config.model.weights().0, taken) {
            let initial = Initial::of(path, &taken).map_err(|source| WeightsError::Read {
                path: path.to_owned(),
                source,
            })?;
            // This is done once.
            let _ = session.initial.set((initial, initial::notes(path, &taken)));
        }
        Ok(model)
    }
}

/// Opens the data and divides it among the ranks.
fn open(
    config: &Config,
    own: Option<&Splits>,
    batching: Batching,
    world: &World,
) -> Result<Input, TrainError> {
    let (rank, size) = (world.rank(), world.size());
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
    let loader = |dataset: &Arc<dyn Dataset>| {
        Ok::<_, TrainError>(Loader::new(dataset.clone())?.workers(config.data.workers))
    };
    Ok(Input {
        train_sampler: train_sampler(config, batching, &splits, (rank, size))?,
        train_loader: loader(&splits.train)?.augment(augment(config), config.train.seed),
        eval_loader: loader(&splits.test)?,
        splits,
        eval_sampler,
    })
}

/// The data that the configuration names, or the few images of it that are to be learned by heart.
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

/// Which images a rank of a world of that size learns from, and when.
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

/// Optimizer steps in one epoch.
pub(crate) fn steps_per_epoch(config: &Config, sampler: &TrainSampler) -> u64 {
    let all = sampler.steps_per_epoch() as u64;
    config
        .train
        .limit_batches
        .map_or(all, |limit| limit.min(all))
}

/// What happens to training images.
pub(crate) fn augment(config: &Config) -> Augment {
    match config.train.overfit_batches {
        Some(_) => Augment::default(),
        None => config.data.augment.clone(),
    }
}
