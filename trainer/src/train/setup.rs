//! Everything between the context and the first step.

use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use burn_dist::checkpoint::{self, Source};
use burn_dist::device::{MemoryShortage, device_memory, is_host};
use burn_dist::launch::Generation;
use burn_dist::parallel::{BucketSizes, MemoryEstimate, Parallel, ParallelOptions, ParameterState};
use burn_dist::world::Launch;
use models::flops;

use super::{End, Summary, Training, failed};
use crate::config::Config;
use crate::config::run_name::CHECKPOINTS;
use crate::data::checksums;
use crate::data::input::steps_per_epoch;
use crate::error::TrainError;
use crate::eval::file;
use crate::run::console::Console;
use crate::run::dir;
use crate::run::environment::Environment;
use crate::run::lock::{RunLock, is_seen};
use crate::run::loggers::{LoggedEnd, LoggedRun, Loggers};
use crate::run::metrics::{Metric, MetricsFile, WorldLine};
use crate::run::process::RunProcess;
use crate::run::resume::Start;
use crate::system::compute::kernels_name;
use crate::system::device::on_device;
use crate::system::host::HostRecord;
use crate::system::output::complain;
use crate::system::signals::{Heed, Waiting};
use crate::system::{clock, log, peak, program};
use crate::task::{Task, name_of_evaluated};
use crate::train::callback::{Begin, Callback};
use crate::train::changes::{self, Before, Now};
use crate::train::checkpointing::Checkpoints;
use crate::train::context::TrainContext;
use crate::train::flat_loss::FlatLoss;
use crate::train::model::has_statistics;
use crate::train::optimizer;
use crate::train::progress::{Identity, Meta, Progress};
use crate::train::record::{Recorder, Requests, Work};
use crate::train::schedule::{Schedule, total_steps};
use crate::train::unused::{self, RunPlace};

/// Warning of a mean of one step.
const SWA_ALONE: &str = "warning: [swa] averages only the last step. Lower swa.start, or set \
                         swa.every_steps";

/// Warning of a mean of parameters whose model has running statistics.
const SWA_STATISTICS: &str = "warning: [swa] averages parameters, but batch normalizations keep the \
                              running statistics of the last parameters. Compare the result with a \
                              run without swa.start";

/// Trains `model`, which is on an autodiff device and has this name.
pub(crate) fn train<T: Task>(
    context: &TrainContext<'_>,
    task: T,
    (model_name, model): (&str, T::Model),
    callbacks: Vec<Box<dyn Callback>>,
) -> Result<Summary, TrainError> {
    let (config, start) = (context.config, &context.start);
    let items = task.items();
    Schedule::check(&config.schedule, items.eval)?;
    task.check(&model)?;
    let work = work(context, &task, &model);
    let states = crate::train::model::states(&model, config);
    let parameters = crate::train::model::parameters(&model);
    optimizer::check(&config.optimizer, &parameters)?;
    check_memory(context, &states)?;
    let steps_per_epoch = steps_per_epoch(config, items.train, context.batching.global);
    let options = ParallelOptions {
        swa: config
            .swa
            .options(steps_per_epoch, total_steps(config, steps_per_epoch)),
        ..parallel_options(config, context.batching.accumulate)
    };
    let statistics = options.swa.is_some() && has_statistics(&model);
    let total = total_steps(config, steps_per_epoch);
    let alone = options.swa.is_some_and(|swa| swa.start >= total);
    // Rank 0 may load weights, and files may take minutes.
    let waiting = Waiting::start();
    let mut parallel = Parallel::new(
        model,
        optimizer::build(&config.optimizer, &parameters),
        options,
        context.group,
    )?;
    let of_run = identity(context, &task);
    let mut progress = match (&start.memory, &start.checkpoint) {
        (Some(memory), _) => {
            let before = || Before::of_start(start);
            restore_from::<T>(&mut parallel, memory, before, &of_run, config)?
        }
        (None, Some(path)) => restore::<T>(&mut parallel, path, &of_run, config)?,
        (None, None) => Progress::start(),
    };
    drop(waiting);
    if start.of_another_run {
        progress.forget_run();
    }
    if config.train.fast_dev_run {
        progress.leave_epoch();
    }
    let mut environment = environment(context, &task, parallel.num_parameters(), progress.steps)?;
    environment.steps_per_epoch = steps_per_epoch;
    // Last, once nothing in the configuration or the data can fail.
    let main = context.world.is_main();
    let before = main.then(|| Before::of_start(start)).flatten();
    let created = (main && !config.train.fast_dev_run)
        .then(|| {
            let (folder, lock) = (start.run_dir.as_deref(), start.lock.as_ref());
            dir::create(folder, lock, context.name, config)
        })
        .transpose()?;
    let (run_dir, lock) = created.unzip();
    let home = share_folder(context, run_dir.as_deref())?;
    if let Some(home) = &home {
        check_shared(context, home, lock.as_deref())?;
    }
    if let Some(home) = &home {
        log::start(home, context.world, context.group);
    }
    let mut notes: Vec<String> = start.messages().cloned().collect();
    notes.extend(
        context
            .initial
            .get()
            .into_iter()
            .flat_map(|(_, notes)| notes.clone()),
    );
    if let Some(folder) = &run_dir {
        notes.extend(abandon(folder, start, progress.steps)?);
    }
    let (batching, ranks) = (context.batching, context.group.size());
    let schedule = Schedule::of_run(config, steps_per_epoch, batching);
    let schedule = schedule.after(progress.seen.clone());
    let now = Now {
        config,
        ranks,
        items,
        schedule: &schedule,
    };
    let changed = before.and_then(|before| now.since(&before, progress.steps));
    notes.extend(changed.iter().flat_map(changes::say));
    // A trial ends early anyway.
    let warning = schedule.warning().filter(|_| !config.train.fast_dev_run);
    notes.extend(warning);
    notes.extend(task.warning());
    notes.extend(unused::warnings(config, place(context)));
    notes.extend(statistics.then(|| SWA_STATISTICS.to_owned()));
    notes.extend(alone.then(|| SWA_ALONE.to_owned()));
    let files = run_dir.as_deref().zip(lock.as_ref());
    let files = files
        .map(|(folder, lock)| open_files(context, (folder, lock), &mut environment, &progress));
    let (metrics, loggers) = files.transpose()?.unzip();
    notes.extend(steps_again(&environment, &progress));
    let checkpoints = match config.checkpoint.wanted() {
        true => start_checkpoints(context, home.as_deref(), lock.clone(), &progress)?,
        false => None,
    };
    let units_of_step = units_of_step(context, &task);
    let set = name_of_evaluated(&task, config);
    let (first, shares) = match parallel.virtual_ranks() {
        Some(all) => (all.of_rank(context.group.rank()).start, all.count()),
        None => (0, 1),
    };
    let mut training = Training {
        context,
        units_of_step,
        recorder: Recorder::new(
            context.group,
            (metrics, loggers.unwrap_or_default()),
            config.log.every_steps,
            (T::WORDS.units, units_of_step),
            work,
        )
        .of_shares(first, shares)
        .guarded_by(lock.clone()),
        console: Console::new(main, T::WORDS.units, task.measures().first().cloned(), set)
            .measuring_memory_of(&context.device.device),
        task,
        schedule,
        callbacks,
        steps_per_epoch,
        parallel,
        checkpoints,
        copies: context.copies.take(),
        own_requests: Requests::default(),
        owes_evaluation: false,
        own_part: (0, Duration::ZERO),
        begin: Instant::now(),
        before: progress.clone(),
        flat_loss: FlatLoss::default(),
        applied: progress.steps,
        progress,
        run_dir,
        home,
        lock,
    };
    if context.dashboard {
        let states = context.group.rank_states();
        training.console.open_dashboard(states);
    }
    training.introduce(model_name, &notes);
    if let Some(changed) = changed {
        training.recorder.write(&Metric::Resume(changed))?;
    }
    if let Some(world) = world_line(context, training.progress.steps) {
        training.recorder.write(&Metric::World(world))?;
    }
    if !start.is_fresh() {
        // A node that is new gets its copies before the first step.
        training.keep_copies()?;
    }
    let heed = Heed::start();
    training.tell_callbacks()?;
    let summary = training.run();
    let summary = summary.inspect_err(|error| training.abandon(error))?;
    let paused = matches!(summary.end, End::Paused(_));
    // From now on, a signal ends the process with the code of a pause.
    if paused && summary.saved {
        heed.pause();
    }
    training.recorder.end(match summary.end {
        End::Complete | End::Early(_) => LoggedEnd::Done,
        End::Paused(_) => LoggedEnd::Paused,
    });
    training.conclude(&summary);
    context.note_summary(&summary);
    training.report();
    if !summary.saved || paused {
        // A launcher may take the first nonzero exit code for a failure and kill the rest. The main
        // rank must be done with its files by then.
        context.group.barrier()?;
    }
    match summary.saved {
        true => Ok(summary),
        false => Err(TrainError::NotSaved {
            steps: summary.steps,
            end: not_saved(&summary.end, config.train.fast_dev_run),
        }),
    }
}

/// The generation of these ranks, if an agent started them.
fn world_line(context: &TrainContext<'_>, steps: u64) -> Option<WorldLine> {
    let generation = Generation::of_this_process()?;
    Some(WorldLine {
        step: steps + 1,
        generation: generation.number,
        ranks: context.group.size(),
        nodes: generation.nodes,
        accumulate: context.batching.accumulate,
        reason: generation.reason,
    })
}

/// The parts of this run that decide which settings matter.
fn place(context: &TrainContext<'_>) -> RunPlace {
    RunPlace {
        on_host: is_host(&context.device.device),
        ranks: context.group.size(),
        shares_memory: context.group.transport() == "shm",
        has_agents: context.world.launch() == Launch::Agent,
    }
}

/// Says how many steps an earlier process of this run had done that are done again.
fn steps_again(environment: &Environment, progress: &Progress) -> Option<String> {
    let reached = environment.processes.last()?.went_back_from?;
    match reached.saturating_sub(progress.steps) {
        0 => None,
        1 => Some(format!("step {reached} is done again")),
        _ => Some(format!(
            "steps {} to {reached} are done again",
            progress.steps + 1
        )),
    }
}

/// Opens the files of metrics in the run folder, and records this process there.
fn open_files(
    context: &TrainContext<'_>,
    (folder, lock): (&Path, &Arc<RunLock>),
    environment: &mut Environment,
    progress: &Progress,
) -> Result<(MetricsFile, Loggers), TrainError> {
    // The run goes on without, as its data could be read.
    let sums = context
        .group
        .busy()
        .during(|| checksums::of(&context.config.data));
    environment.data = sums.unwrap_or_else(|error| {
        complain(&format!("warning: no checksum of the data: {error}"));
        Vec::new()
    });
    let metrics = MetricsFile::open(folder, progress.metrics_bytes)?;
    if let Some(process) = environment.processes.last_mut() {
        process.went_back_from = metrics.dropped_step().filter(|step| *step > progress.steps);
    }
    environment.write(folder)?;
    // Set once.
    let _ = context.recorded.set((folder.to_owned(), lock.clone()));
    let loggers = Loggers::open(&LoggedRun {
        folder,
        name: context.name,
        config: context.config,
        environment,
        steps: progress.steps,
    });
    Ok((metrics, loggers))
}

/// Consequence of an unsaved last state for a run that ended this way, and the advice.
fn not_saved(end: &End, trial: bool) -> &'static str {
    match end {
        End::Paused(_) if trial => {
            "train.fast_dev_run saves nothing. Start the run again from its beginning"
        }
        End::Paused(_) => {
            "the progress since the last good checkpoint is lost. Free disk space or fix the cause \
             above, then start the run again with --resume auto"
        }
        End::Complete | End::Early(_) => {
            "the run ended, but its final model is lost. Free disk space or fix the cause above, \
             then start the run again with --resume auto, which repeats the steps after the last \
             good checkpoint"
        }
    }
}

impl<T: Task> Training<'_, T> {
    fn tell_callbacks(&mut self) -> Result<(), TrainError> {
        let begin = Begin {
            rank: self.context.group.rank(),
            world_size: self.context.group.size(),
            run_dir: self.run_dir.as_deref(),
            steps: self.progress.steps,
            steps_per_epoch: self.steps_per_epoch,
            epochs: self.epochs(),
            parameters: self.parallel.num_parameters(),
        };
        for callback in &mut self.callbacks {
            callback.on_begin(&begin).map_err(failed)?;
        }
        Ok(())
    }
}

/// The known arithmetic cost of the run.
fn work<T: Task>(context: &TrainContext<'_>, task: &T, model: &T::Model) -> Work {
    let units = task.units_per_item().max(1) as f64;
    let forward = task.flops(model);
    let config = context.config;
    let device = &context.device.name;
    let known = || peak::peak_tflops(device, config.train.precision);
    let peak = config.log.peak_tflops.or_else(known);
    // Ranks on one device share its peak.
    let devices = context.sharing.devices as f64;
    Work {
        flops_per_unit: forward.map(|flops| flops.saturating_mul(flops::TRAINING) as f64 / units),
        peak_flops: peak.map(|tflops| tflops * 1e12 * devices),
    }
}

/// Restores a checkpoint, and returns the progress of its run.
pub(crate) fn restore<T: Task>(
    parallel: &mut Parallel<T::Model>,
    path: &Path,
    identity: &Identity,
    config: &Config,
) -> Result<Progress, TrainError> {
    let source = Source::open(path)?;
    restore_from::<T>(parallel, &source, || Before::of(path), identity, config)
}

/// Restores the state of a run `before`, and returns its progress.
fn restore_from<T: Task>(
    parallel: &mut Parallel<T::Model>,
    source: &Source,
    before: impl FnOnce() -> Option<Before>,
    identity: &Identity,
    config: &Config,
) -> Result<Progress, TrainError> {
    let meta = Meta::of::<T>(source.manifest(), identity, Some(config))?;
    let restored = parallel.restore(source);
    restored.map_err(|error| changes::of_restore(error.into(), before, config))?;
    parallel.set_steps(meta.progress.steps);
    Ok(meta.progress)
}

/// Moves aside what the run saved after the step that it goes back to.
///
/// Otherwise those checkpoints would pass for the newest state, although their metrics are gone. A
/// run that starts from scratch moves its old metrics aside instead. Returns a message.
fn abandon(run_dir: &Path, start: &Start, steps: u64) -> Result<Option<String>, TrainError> {
    if start.is_fresh() {
        file::forget_after(run_dir, steps);
        let aside = dir::abandon_metrics(run_dir)?;
        let told = |path: PathBuf| format!("abandoned the earlier metrics: {}", path.display());
        return Ok(aside.map(told));
    }
    if start.of_another_run {
        return Ok(None);
    }
    file::forget_after(run_dir, steps);
    let aside = checkpoint::abandon_after(&run_dir.join(CHECKPOINTS), steps)?;
    let names = aside.iter().filter_map(|path| path.file_name());
    let names: Vec<_> = names.map(|name| name.to_string_lossy()).collect();
    let told = || {
        format!(
            "abandoned checkpoints after step {steps}: {}",
            names.join(", ")
        )
    };
    Ok((!names.is_empty()).then(told))
}

/// The identity of a run of this task.
pub(super) fn identity<T: Task>(context: &TrainContext<'_>, task: &T) -> Identity {
    Identity::of(context.config, context.batching, task)
}

/// Images, tokens or other units in a global batch.
fn units_of_step<T: Task>(context: &TrainContext<'_>, task: &T) -> f64 {
    context.batching.global as f64 * task.units_per_item() as f64
}

/// Shares rank 0's run folder with all ranks. A trial run has none.
fn share_folder(
    context: &TrainContext<'_>,
    run_dir: Option<&Path>,
) -> Result<Option<PathBuf>, TrainError> {
    if context.config.train.fast_dev_run {
        return Ok(None);
    }
    let own = run_dir.unwrap_or(Path::new(""));
    let own = std::path::absolute(own).unwrap_or(own.to_owned());
    let all = context.group.gather_bytes(own.as_os_str().as_bytes())?;
    let first = all.into_iter().next().unwrap_or_default();
    Ok(Some(PathBuf::from(OsString::from_vec(first))))
}

/// Checks that the nodes of `trainer launch` share the run folder, as the next generation may begin
/// on any of them. A collective call.
fn check_shared(
    context: &TrainContext<'_>,
    home: &Path,
    lock: Option<&RunLock>,
) -> Result<(), TrainError> {
    let (group, world) = (context.group, context.world);
    if world.launch() != Launch::Agent || group.size() == world.local_size() {
        return Ok(());
    }
    let token = lock.and_then(RunLock::token).unwrap_or_default();
    let tokens = group.gather_bytes(token.as_bytes())?;
    let token = tokens.first().map(|token| String::from_utf8_lossy(token));
    let token = token.unwrap_or_default();
    let seen = || token.is_empty() || is_seen(home, &token);
    let seen = group.busy().during(seen);
    let all = group.gather_bytes(&[u8::from(seen)])?;
    match all.iter().position(|seen| *seen != [1]) {
        None => Ok(()),
        Some(rank) => Err(TrainError::RunDirNotShared {
            rank,
            folder: home.to_owned(),
        }),
    }
}

/// Starts checkpoints in the shared folder. A trial run writes none.
pub(super) fn start_checkpoints(
    context: &TrainContext<'_>,
    home: Option<&Path>,
    lock: Option<Arc<RunLock>>,
    progress: &Progress,
) -> Result<Option<Checkpoints>, TrainError> {
    let Some(home) = home else {
        return Ok(None);
    };
    let config = &context.config.checkpoint;
    let folder = home.join(CHECKPOINTS);
    let timeout = Duration::from_secs(context.config.parallel.timeout_seconds);
    let group = context.group;
    // A checkpoint of another run is in another folder.
    let start = &context.start;
    let is_on_disk = start.checkpoint.is_some() && start.memory.is_none();
    let is_there = is_on_disk && !start.of_another_run;
    let saved = is_there.then_some((progress.steps, progress.evaluated));
    let checkpoints = Checkpoints::start(config, &folder, lock, saved, timeout, group)?;
    Ok(Some(checkpoints))
}

/// Training options of `config` with `accumulate` micro-batches per step.
pub(crate) fn parallel_options(config: &Config, accumulate: usize) -> ParallelOptions {
    ParallelOptions {
        strategy: config.parallel.strategy,
        shard_within: config.parallel.shard_within,
        virtual_ranks: config.parallel.virtual_ranks,
        accumulate,
        clip_norm: config.train.clip_norm,
        buckets: BucketSizes::from_mib(config.parallel.bucket_mib),
        compression: config.parallel.compression,
        offload_optimizer: config.parallel.offload_optimizer,
        sync_batch_norm: config.parallel.sync_batch_norm,
        prefetch: config.parallel.prefetch,
        precision: config.train.precision,
        loss_scale: config.loss_scale.options(),
        ema: config.ema.options(),
        // `train` knows the steps.
        swa: config.swa.options(1, 1),
    }
}
/// Describes software, hosts and devices of all ranks. A collective call.
fn environment<T: Task>(
    context: &TrainContext<'_>,
    task: &T,
    parameters: usize,
    first_step: u64,
) -> Result<Environment, TrainError> {
    let own = serde_json::to_vec(&HostRecord::here(&context.device.name)).unwrap_or_default();
    let hosts = context.group.gather_bytes(&own)?;
    let hosts: Vec<HostRecord> = hosts
        .iter()
        .map(|host| serde_json::from_slice(host).unwrap_or_default())
        .collect();
    let items = task.items();
    let mut environment = Environment {
        version: program::VERSION.to_owned(),
        revision: program::REVISION.to_owned(),
        features: program::FEATURES.to_owned(),
        target: program::TARGET.to_owned(),
        command: std::env::args_os()
            .map(|argument| argument.to_string_lossy().into_owned())
            .collect(),
        started: clock::rfc3339(SystemTime::now()),
        folder: std::env::current_dir().map_or_else(
            |_| String::new(),
            |folder| folder.to_string_lossy().into_owned(),
        ),
        hosts: hosts.iter().map(|host| host.host.clone()).collect(),
        device: context.device.name.clone(),
        kernels: kernels_name(context.config, &context.device.device),
        world_size: context.group.size(),
        nodes: context.group.nodes(),
        threads: rayon::current_num_threads(),
        parameters,
        train_samples: items.train,
        eval_samples: items.eval,
        evaluated: name_of_evaluated(task, context.config).to_owned(),
        weights: context.initial.get().map(|(initial, _)| initial.clone()),
        ..Environment::default()
    };
    environment.processes = vec![RunProcess {
        started: environment.started.clone(),
        command: environment.command.clone(),
        folder: environment.folder.clone(),
        ..RunProcess::of_this_program(first_step, hosts)
    }];
    if !context.config.task.is_usual() {
        environment.task = Some(T::NAME.to_owned());
        environment.items = Some(T::WORDS.items.to_owned());
        environment.measures = task.measures().to_vec();
    }
    task.describe(&mut environment);
    Ok(environment)
}

/// Rejects a training whose state exceeds the memory of its device, if that is known. Activations
/// come on top and are not known in advance.
fn check_memory(context: &TrainContext<'_>, states: &[ParameterState]) -> Result<(), TrainError> {
    let (chosen, group) = (&context.device, context.group);
    let Some(total) = chosen.cuda.and_then(device_memory) else {
        return Ok(());
    };
    let whole = states.iter().any(|state| state.whole);
    let options = parallel_options(context.config, 1);
    let options = options.carried_out(&chosen.device, whole, group.size());
    let ranks = options.shard_within.ranks(group.size(), group.nodes());
    let states = on_device(context.config, states);
    let needed = MemoryEstimate::of(options.strategy, &states, ranks).total();
    Ok(MemoryShortage::check(
        needed,
        states.iter().map(|state| state.elements).sum(),
        total,
        context.sharing.ranks,
    )?)
}
