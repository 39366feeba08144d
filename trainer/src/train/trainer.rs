//! Runs a training from its checked configuration to its summary: connects the ranks, prepares data
//! and model, and starts the training loop.

use std::cell::Cell;
use std::path::PathBuf;
use std::sync::OnceLock;

use burn::module::Module;
use burn::tensor::Device;
use burn_dist::ProcessGroup;
use burn_dist::world::{Launch, World};
use datasets::Dataset;
use models::weights::{PyTorchKeys, WeightsError};
use models::{ImageClassifier, ModelError};

use crate::config::{Loaded, check_evaluated, check_monitors};
use crate::data::Splits;
use crate::error::TrainError;
use crate::run::environment::Initial;
use crate::run::group;
use crate::run::resume::{Resume, Start};
use crate::system::output;
use crate::system::signals::{Beginning, Waiting};
use crate::system::{compute, device, limits, log};
use crate::task::Task;
use crate::task::classification::{Classification, Images};
use crate::task::open::{Data, Input, Opening, OwnTask, WithTask};
use crate::train::callback::Callback;
use crate::train::context::{TrainContext, training_device};
use crate::train::copies::Copies;
use crate::train::{self, End, Summary};
use crate::train::{bf16_path, freeze, generation, initial, misfit, seed};

/// A training run: a configuration and the caller's additions.
///
/// Every rank of the world builds the same one.
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
    /// Makes a run of `loaded` on the ranks of `world`.
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

    /// Sets the run folder. Defaults to `runs/<name>-<time>`.
    pub fn run_dir(mut self, folder: impl Into<PathBuf>) -> Self {
        self.run_dir = Some(folder.into());
        self
    }

    /// Sets the run to resume. Defaults to none.
    pub fn resume(mut self, resume: Resume) -> Self {
        self.resume = resume;
        self
    }

    /// Sets the caller's own images, for a configuration with `data.name = "own"`.
    ///
    /// The other keys of `[data]` apply to them, such as `data.augment`. Every rank passes the same
    /// images; the trainer divides them.
    pub fn data(mut self, splits: Splits) -> Self {
        self.data = Some(splits);
        self
    }

    /// Adds a callback. Callbacks run in the order in which they were added.
    pub fn callback(mut self, callback: impl Callback + 'static) -> Self {
        self.callbacks.push(Box::new(callback));
        self
    }

    /// Shows the dashboard on the main rank, if it has a terminal.
    pub fn dashboard(mut self, wanted: bool) -> Self {
        self.dashboard = wanted;
        self
    }

    /// Trains the configured model.
    ///
    /// # Errors
    /// Any error that ends the run early. The other ranks receive it. With several ranks, this
    /// process ends at most `parallel.abort_seconds` later, whatever it does then.
    pub fn run(self) -> Result<Summary, TrainError> {
        let loaded = self.loaded;
        self.go(Data::open, |context, device, data, callbacks| {
            let then = Train { context, callbacks };
            data.build(context.config, device, then)
                .map_err(|error| misfit::of_model(loaded, &error))?
        })
    }

    /// Trains the caller's image classifier.
    ///
    /// `build` makes it for a device and the given data's images and classes. The section `[model]`
    /// of the configuration is ignored.
    ///
    /// # Errors
    /// As [`run`](Self::run).
    pub fn run_model<M: ImageClassifier>(
        self,
        build: impl FnOnce(&Device, &dyn Dataset) -> Result<M, ModelError>,
    ) -> Result<Summary, TrainError> {
        self.go(Images::open, |context, device, images, callbacks| {
            let model = build(device, images.train())?;
            let model = (name_of_type::<M>(), model);
            train::train(context, Classification::new(images), model, callbacks)
        })
    }

    /// Trains the caller's task.
    ///
    /// `open` makes the task with this rank's share of the data, and `build` its model for a
    /// device. With `task.name = "own"`, the sections `[data]` and `[model]` of the configuration
    /// are for the caller's use.
    ///
    /// # Errors
    /// As [`run`](Self::run), and if the configuration watches a metric that the task lacks, or
    /// sets `data.validation` and the task does not evaluate on that data.
    pub fn run_task<T: Task>(
        self,
        open: impl FnOnce(&Opening<'_>) -> Result<T, TrainError>,
        build: impl FnOnce(&T, &Device) -> Result<T::Model, TrainError>,
    ) -> Result<Summary, TrainError> {
        let loaded = self.loaded;
        let open = |opening: &Opening<'_>| {
            let task = open(opening)?;
            let config = &loaded.config;
            let checked = check_monitors(config, task.measures());
            let checked = checked.and_then(|()| check_evaluated(&config.data, task.evaluated()));
            match checked {
                Ok(()) => Ok(OwnTask(task)),
                Err(fault) => Err(TrainError::Misfit(loaded.locate(fault))),
            }
        };
        self.go(open, |context, device, OwnTask(task), callbacks| {
            let model = (name_of_type::<T::Model>(), build(&task, device)?);
            train::train(context, task, model, callbacks)
        })
    }

    fn go<I: Input>(
        self,
        open: impl FnOnce(&Opening<'_>) -> Result<I, TrainError>,
        then: impl FnOnce(
            &TrainContext<'_>,
            &Device,
            I,
            Vec<Box<dyn Callback>>,
        ) -> Result<Summary, TrainError>,
    ) -> Result<Summary, TrainError> {
        let _beginning = Beginning::start();
        output::never_wait();
        let (loaded, world) = (self.loaded, self.world);
        let mut config = loaded.config.clone();
        limits::apply(&mut config);
        // An agent's ranks may keep the batch of a checkpoint instead.
        if world.launch() != Launch::Agent {
            loaded.batching(world.size())?;
        }
        let work = |group: &ProcessGroup| {
            let run_dir = self.run_dir.as_deref();
            let writes = !config.train.fast_dev_run;
            let mut start = Start::find(&self.resume, run_dir, &loaded.name, writes, group)?;
            let (copies, newest) = match config.checkpoint.in_memory {
                true => Copies::open(group)?,
                false => (None, None),
            };
            start.prefer(newest.filter(|_| self.resume == Resume::Auto))?;
            let batching = generation::batching(loaded, world.size(), &mut start)?;
            let chosen = device::choose(&config, world)?;
            let context = TrainContext {
                config: &config,
                name: &loaded.name,
                start,
                copies: Cell::new(copies),
                world,
                group,
                batching,
                dashboard: self.dashboard,
                sharing: chosen.sharing(group)?,
                device: chosen,
                initial: OnceLock::new(),
                recorded: OnceLock::new(),
            };
            let opening = Opening {
                images: self.data.as_ref(),
                ..Opening::to_train(&config, batching, (world.rank(), world.size()))
            };
            let mut data = group::in_turn(world, group, || open(&opening))?;
            data.check_same(group)?;
            let device = training_device(&context);
            compute::choose_kernels(&config, &device)?;
            let before = match group.rank() {
                0 => context.start.manifest()?,
                _ => None,
            };
            bf16_path::agree(&config, &device, group, before.as_ref())?;
            data.bring(&context.place(&device))?;
            device.seed(seed::of_parameters(config.train.seed));
            let outcome = then(&context, &device, data, self.callbacks);
            context.note_end(&outcome);
            outcome
        };
        let outcome = group::with_group(&config, world, |group| {
            let outcome = work(group).map_err(|error| misfit::locate(loaded, error));
            log::finish(&ending(&outcome));
            outcome
        });
        output::flush();
        outcome
    }
}

/// The last part of a type's path, without generics.
fn name_of_type<M>() -> &'static str {
    let path = std::any::type_name::<M>();
    let path = path.split('<').next().unwrap_or(path);
    path.rsplit("::").next().unwrap_or(path)
}

/// The last line of the log.
fn ending(outcome: &Result<Summary, TrainError>) -> String {
    match outcome {
        Ok(Summary { steps, end, .. }) => format!(
            "ended after step {steps}: {}",
            match end {
                End::Complete => "complete".to_owned(),
                End::Early(reason) => format!("early, {reason}"),
                End::Paused(reason) => format!("paused, because of {reason}"),
            }
        ),
        Err(error) => format!("error: {error}"),
    }
}

/// Trains the configured model.
struct Train<'s> {
    context: &'s TrainContext<'s>,
    callbacks: Vec<Box<dyn Callback>>,
}

impl WithTask for Train<'_> {
    type Output = Result<Summary, TrainError>;

    fn call<T: Task>(self, task: T, model: T::Model) -> Self::Output
    where
        T::Model: PyTorchKeys,
    {
        let context = self.context;
        // The other ranks get rank 0's weights, and a checkpoint has its own.
        let model = match context.group.rank() == 0 && context.start.is_fresh() {
            true => self.start_from_weights(model)?,
            false => model,
        };
        let model = freeze::apply(model, context.config)?;
        let model = (context.config.model.kind.name(), model);
        train::train(context, task, model, self.callbacks)
    }
}

impl Train<'_> {
    /// The model with the weights that the configuration names; the context takes note of them.
    fn start_from_weights<M: Module + PyTorchKeys>(&self, model: M) -> Result<M, TrainError> {
        let context = self.context;
        let _waiting = Waiting::start();
        let (model, taken) = initial::load(model, context.config)?;
        if let (Some(path), Some(taken)) = (&context.config.model.weights, taken) {
            let initial = Initial::of(path, &taken).map_err(|source| WeightsError::Read {
                path: path.to_owned(),
                source,
            })?;
            // Called once.
            let _ = context.initial.set((initial, initial::notes(path, &taken)));
        }
        Ok(model)
    }
}
