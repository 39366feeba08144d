//! The training loop: epochs of optimizer steps, with an evaluation after each epoch.

mod abandon;
pub(crate) mod bf16_path;
pub mod callback;
pub(crate) mod changes;
pub(crate) mod checkpointing;
pub(crate) mod context;
pub(crate) mod copies;
mod course;
pub mod early_stopping;
pub(crate) mod flat_loss;
pub(crate) mod freeze;
mod generation;
pub(crate) mod initial;
pub(crate) mod misfit;
pub mod model;
pub(crate) mod named_weights;
pub mod optimizer;
pub mod progress;
pub(crate) mod record;
pub mod schedule;
pub(crate) mod seed;
mod setup;
mod step;
mod summary;
pub mod trainer;
pub(crate) mod unused;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use burn_dist::ReduceOp;
use burn_dist::parallel::{Parallel, Precision};
use burn_dist::world::Launch;
use serde::{Deserialize, Serialize};

pub(crate) use setup::{parallel_options, restore, train};
pub use summary::{End, Summary};

use crate::error::TrainError;
use crate::eval::evaluate::{Evaluated, Evaluator, within_range};
use crate::eval::file;
use crate::run::console::Console;
use crate::run::eta::StepDone;
use crate::run::gallery::Gallery;
use crate::run::lock::RunLock;
use crate::run::metrics::{EvalLine, Metric, RanksLine, TrainLine};
use crate::system::output::{complain, duration};
use crate::system::{compute, memory};
use crate::task::{Details, Evaluation, Task, name_of_evaluated};
use crate::train::callback::{Action, AfterEvaluation, Callback, CallbackError};
use crate::train::checkpointing::Checkpoints;
use crate::train::context::TrainContext;
use crate::train::copies::Copies;
use crate::train::early_stopping::watched;
use crate::train::flat_loss::FlatLoss;
use crate::train::progress::{Meta, Progress};
use crate::train::record::{Recorder, Requests, Skipped};
use crate::train::schedule::Schedule;

/// A run in progress.
struct Training<'s, T: Task> {
    context: &'s TrainContext<'s>,
    task: T,
    parallel: Parallel<T::Model>,
    recorder: Recorder,
    console: Console,
    schedule: Schedule,
    callbacks: Vec<Box<dyn Callback>>,
    steps_per_epoch: u64,
    /// Images, tokens or other units in a global batch.
    units_of_step: f64,
    checkpoints: Option<Checkpoints>,
    copies: Option<Copies>,
    progress: Progress,
    /// Requests of this rank that the other ranks do not know yet.
    own_requests: Requests,
    /// Whether the next evaluation comes before the next step.
    owes_evaluation: bool,
    /// Steps of the current epoch in this process, and their time.
    own_part: (u64, Duration),
    begin: Instant,
    /// Progress when this process began.
    before: Progress,
    /// Detects a constant loss.
    flat_loss: FlatLoss,
    /// The last step known to have changed the parameters.
    applied: u64,
    /// The run folder. Only on the main rank.
    run_dir: Option<PathBuf>,
    /// The run folder as an absolute path, on all ranks.
    home: Option<PathBuf>,
    /// Lock on the run folder. Only on the main rank.
    lock: Option<Arc<RunLock>>,
}

impl<T: Task> Training<'_, T> {
    fn run(&mut self) -> Result<Summary, TrainError> {
        let mut end = self.ended_before();
        if let Some(end) = &end {
            self.tell_nothing_left(end);
        }
        let end = loop {
            if let Some(end) = end {
                break end;
            }
            self.begin_epoch();
            end = self.epoch()?;
            // Finds a faulty network or memory before it spoils the results.
            self.parallel.verify_replicas()?;
            if end.is_none() && self.is_complete() {
                end = Some(End::Complete);
            }
        };
        self.check_skipped(&end)?;
        let saved = self.save_end(&end)?;
        let summary = self.summary(end, saved)?;
        for callback in &mut self.callbacks {
            callback.on_end(&summary).map_err(failed)?;
        }
        Ok(summary)
    }

    /// Fails if a run at its end has skipped nearly all its steps.
    ///
    /// A trial may do so: the loss scale is still too high after three steps.
    fn check_skipped(&self, end: &End) -> Result<(), TrainError> {
        let counted = Skipped {
            skipped: self.recorder.skipped_steps().unwrap_or(0),
            steps: self.progress.steps,
        };
        let trial = self.context.config.train.fast_dev_run;
        match counted.is_nearly_all() && !trial && !matches!(end, End::Paused(_)) {
            true => Err(TrainError::Skipped {
                skipped: counted.skipped,
                steps: counted.steps,
            }),
            false => Ok(()),
        }
    }

    /// The end of a resumed run that has nothing left to do. A run that stopped early goes on only
    /// if the configuration now asks for more.
    fn ended_before(&self) -> Option<End> {
        if self.is_complete() {
            return Some(End::Complete);
        }
        let stopping = &self.context.config.early_stopping;
        let over = self
            .progress
            .evaluated
            .then(|| self.progress.watch.over(stopping));
        over.flatten().map(End::Early)
    }

    fn tell_nothing_left(&mut self, end: &End) {
        let Progress { steps, epoch, .. } = self.progress;
        let limit = self.context.config.train.max_steps;
        let longer = match (end, limit.filter(|limit| steps >= *limit)) {
            (End::Complete, Some(_)) => "raise train.max_steps",
            (End::Complete, None) => "raise train.epochs",
            _ => "change early_stopping",
        };
        let epochs = self.epochs();
        let of = match epoch > epochs {
            true => format!(", and train.epochs is {epochs}"),
            false => format!(" of {epochs}"),
        };
        self.console.line(&format!(
            "nothing to do: the run ended after step {steps}, in epoch {epoch}{of}. To train \
             longer, {longer}"
        ));
    }

    /// Continues the epoch that an earlier process left at its last step, or begins the next.
    fn begin_epoch(&mut self) {
        let over = self.is_epoch_over();
        let progress = &mut self.progress;
        if progress.evaluated && over {
            progress.epoch += 1;
            progress.steps_of_epoch = 0;
            progress.epoch_loss = 0.0;
            progress.epoch_losses = Some(0);
            progress.epoch_weight = None;
            self.own_part = (0, Duration::ZERO);
        }
        self.owes_evaluation = !progress.evaluated && progress.steps_of_epoch > 0;
        progress.evaluated = false;
        self.owes_evaluation &= self.is_evaluation_due();
    }

    /// Whether an evaluation is due after this step.
    fn is_evaluation_due(&self) -> bool {
        let every = self.context.config.train.evaluate_every_steps;
        every.is_some_and(|every| self.progress.steps.is_multiple_of(every))
    }

    fn is_epoch_over(&self) -> bool {
        self.progress.epoch == 0 || self.progress.steps_of_epoch >= self.steps_per_epoch
    }

    /// Whether no step or evaluation is left.
    fn is_complete(&self) -> bool {
        let progress = &self.progress;
        let last = progress.epoch > self.epochs()
            || progress.epoch == self.epochs() && self.is_epoch_over();
        progress.evaluated && (last || self.at_last_step())
    }

    /// Number of the last epoch.
    fn epochs(&self) -> u64 {
        let train = &self.context.config.train;
        match train.fast_dev_run {
            true => self.before.epoch + 1,
            false => train.epochs,
        }
    }

    /// Whether no step is left. True at once if a resumed run has fewer epochs than it has begun.
    fn at_last_step(&self) -> bool {
        let limit = self.context.config.train.max_steps;
        let reached = limit.is_some_and(|limit| self.progress.steps >= limit);
        reached || self.progress.epoch > self.epochs()
    }

    /// Runs an epoch up to its next evaluation, and the evaluation. Returns the reason if the run
    /// should end early.
    fn epoch(&mut self) -> Result<Option<End>, TrainError> {
        let begin = Instant::now();
        let first_step = self.progress.steps;
        let requests = self.steps_of_epoch(begin)?;
        // A process that only does an outstanding evaluation has no steps to report.
        if self.progress.steps > first_step {
            self.own_part.0 += self.progress.steps - first_step;
            self.own_part.1 += begin.elapsed();
            self.share_work()?;
        }
        if requests.pause {
            return Ok(Some(self.paused()));
        }
        self.console.start_evaluation();
        // The run evaluates after the resume if it has no time now.
        let Some(evaluation) = self.evaluate_epoch()? else {
            return Ok(Some(self.paused()));
        };
        self.console.evaluation(&evaluation);
        self.tell_epoch(&evaluation);
        self.end_epoch(evaluation, requests)
    }

    /// Records an evaluation, and decides whether the run ends or saves.
    fn end_epoch(
        &mut self,
        evaluation: Evaluation,
        requests: Requests,
    ) -> Result<Option<End>, TrainError> {
        self.progress.evaluated = true;
        self.progress.evaluation = Some(evaluation.clone());
        let stopping = &self.context.config.early_stopping;
        let measures = self.task.measures();
        let reason = self.progress.watch.see(stopping, measures, &evaluation);
        self.progress.seen = self.schedule.see(measures, &evaluation);
        let within_epoch = !self.is_epoch_over();
        let after = AfterEvaluation {
            within_epoch,
            epoch: self.progress.epoch,
            steps: self.progress.steps,
            train_loss: self.recorder.mean_loss().unwrap_or(f64::NAN),
            evaluation: &evaluation,
        };
        for callback in &mut self.callbacks {
            let action = callback.on_evaluation(&after).map_err(failed)?;
            self.own_requests = self.own_requests.or(request(action));
        }
        let requests = requests.or(self.agree()?);
        let is_best = self.is_best(&evaluation);
        let (epoch, steps) = (self.progress.epoch, self.progress.steps);
        let due = |checkpoints: &Checkpoints| match within_epoch {
            true => checkpoints.is_due_after_step(steps),
            false => checkpoints.is_due_after_epoch(epoch, steps),
        };
        if is_best || requests.save || self.checkpoints.as_ref().is_some_and(due) {
            self.save()?;
        }
        self.keep_copies_if_due()?;
        if requests.pause && reason.is_none() && !self.is_complete() {
            return Ok(Some(self.paused()));
        }
        let asked = || "a callback asked for it".to_owned();
        Ok(reason.or(requests.stop.then(asked)).map(End::Early))
    }

    /// Whether an agent started this rank.
    fn is_of_agent(&self) -> bool {
        self.context.world.launch() == Launch::Agent
    }

    fn paused(&self) -> End {
        let reason = self.reason_to_pause();
        End::Paused(reason.unwrap_or("a request to another rank").to_owned())
    }

    /// Name of the data that is evaluated.
    fn set(&self) -> &'static str {
        name_of_evaluated(&self.task, self.context.config)
    }

    /// The requests of all ranks at this moment.
    fn agree(&mut self) -> Result<Requests, TrainError> {
        let mut requests = self.requests().encode();
        self.context
            .group
            .all_reduce(&mut requests, ReduceOp::Max)?;
        Ok(Requests::decode(&requests))
    }

    /// Evaluates, unless a rank asks to pause meanwhile.
    fn evaluate_epoch(&mut self) -> Result<Option<Evaluation>, TrainError> {
        self.parallel.sync_buffers()?;
        let begin = Instant::now();
        let Some((evaluation, mut details)) = self.evaluated()? else {
            return Ok(None);
        };
        let progress = &self.progress;
        if !evaluation.loss.is_finite() {
            return Err(TrainError::Diverged {
                what: format!("the {} loss after epoch {}", self.set(), progress.epoch),
                value: evaluation.loss,
                state: progress.steps,
            });
        }
        details.set_moment(progress.epoch, progress.steps);
        self.recorder.write(&Metric::Eval(EvalLine {
            epoch: progress.epoch,
            step: progress.steps,
            set: self.set().to_owned(),
            loss: evaluation.loss,
            metrics: evaluation.metrics.clone(),
            samples: evaluation.samples,
            elapsed: progress.train_seconds,
            seconds: begin.elapsed().as_secs_f64(),
            skipped_steps: self.recorder.skipped_steps(),
        }))?;
        let busy = self.context.group.busy();
        let write = |folder| busy.during(|| file::write(&details, folder));
        if let Some(Err(error)) = self.run_dir.as_deref().map(write) {
            // The details are only for people: a failure must not end the run.
            complain(&format!("warning: {error}"));
        }
        let set = self.set();
        self.recorder.show(|| Gallery {
            step: self.progress.steps,
            set: set.to_owned(),
            ..details.gallery()
        });
        Ok(Some(evaluation))
    }

    /// Evaluates in the configured precision.
    fn evaluated(&self) -> Result<Option<Evaluated<T::Details>>, TrainError> {
        let wanted = self.context.config.train.eval_precision();
        within_range(wanted, self.context.group, |precision| {
            self.evaluated_in(precision)
        })
    }

    /// Evaluates in `f32` or in the precision of the training.
    fn evaluated_in(
        &self,
        precision: Precision,
    ) -> Result<Option<Evaluated<T::Details>>, TrainError> {
        let (context, started) = (self.context, self.begin);
        let evaluator = Evaluator {
            task: &self.task,
            device: &context.device.device,
            precision,
            group: context.group,
            together: self.parallel.gathers(),
        };
        let pause = || step::reason_to_pause(context.config, started).is_some();
        let evaluate = |model: &T::Model| evaluator.evaluate(model, Some(&pause));
        match precision {
            Precision::F32 => self.parallel.evaluate_with(evaluate)?,
            _ => self.parallel.evaluate_autocast(evaluate)?,
        }
    }

    fn tell_epoch(&mut self, evaluation: &Evaluation) {
        let in_epoch = self.recorder.skipped_in_epoch();
        let skipped = match in_epoch {
            Skipped { skipped: 0, .. } => String::new(),
            Skipped { skipped, steps } => format!(", {skipped} of {steps} steps skipped"),
        };
        let loss = self.recorder.mean_loss();
        let set = self.set();
        let shown = self.task.measures().first().and_then(|measure| {
            let value = evaluation.metric(&measure.name)?;
            Some(format!(
                ", {set} {} {}",
                measure.label,
                measure.shown.text(value)
            ))
        });
        let within = match self.is_epoch_over() {
            true => String::new(),
            false => format!(
                ", step {}/{}",
                self.progress.steps_of_epoch, self.steps_per_epoch
            ),
        };
        let (time, rate) = match self.own_part {
            // This process has only evaluated.
            (0, _) => Default::default(),
            (steps, time) => {
                let rate = self.units(steps) / time.as_secs_f64();
                let rate = format!(", {rate:.0} {}/s", T::WORDS.units);
                (format!("{}, ", duration(time)), rate)
            }
        };
        let line = format!(
            "epoch {}/{}{within}: {time}train loss {}, {set} loss {:.4}{}{rate}{skipped}",
            self.progress.epoch,
            self.course().last_epoch(),
            loss.map_or("none".to_owned(), |loss| format!("{loss:.4}")),
            evaluation.loss,
            shown.unwrap_or_default(),
        );
        self.console.line(&line);
        if in_epoch.is_most() {
            self.warn_of_skipped();
        }
    }

    fn warn_of_skipped(&self) {
        if self.context.group.rank() == 0 {
            complain(
                "warning: most of these steps were skipped, because their gradients overflowed in \
                 f16. Lower optimizer.lr or loss_scale.initial, set train.clip_norm, or use \
                 train.precision = \"bf16\"",
            );
        }
    }

    /// Whether this evaluation is the best so far and the configuration keeps the best checkpoint.
    fn is_best(&mut self, evaluation: &Evaluation) -> bool {
        let config = &self.context.config.checkpoint;
        let name = config.monitor.as_deref().unwrap_or("loss");
        let (value, better) = watched(name, self.task.measures(), evaluation);
        self.progress.see(name, better, evaluation);
        if !config.best || self.checkpoints.is_none() {
            return false;
        }
        let before = self.progress.best_by.replace(name.to_owned());
        // An accuracy cannot be compared with a loss.
        let is_same = before.is_none_or(|before| before == name);
        let best = self.progress.best.filter(|_| is_same);
        if best.is_some_and(|(_, best)| !better.is_better(value, best, 0.0)) {
            return false;
        }
        self.progress.set_best(value);
        true
    }

    /// Trains until the epoch or run ends, an evaluation is due, or a rank asks to stop. Returns
    /// the requests of the ranks.
    fn steps_of_epoch(&mut self, begin: Instant) -> Result<Requests, TrainError> {
        let (epoch, done_before) = (self.progress.epoch, self.progress.steps_of_epoch);
        let (first_step, seconds) = (self.progress.steps, self.progress.train_seconds);
        let losses = self.progress.epoch_losses.unwrap_or(done_before);
        let (loss, weight) = (self.progress.epoch_loss, self.progress.epoch_weight);
        self.recorder.start_epoch(losses, loss, weight);
        let course = self.course();
        self.console.start_epoch(
            epoch,
            course.last_epoch(),
            course.epoch_steps(),
            done_before,
        );
        // Tasks count epochs from 0.
        let epoch = epoch as usize - 1;
        let mut batches = self.task.train_batches(epoch, done_before as usize);
        let mut requests = Requests::default();
        while !(self.owes_evaluation || self.is_epoch_over() || self.at_last_step()) {
            self.step(&mut batches, || seconds + begin.elapsed().as_secs_f64())?;
            let units = self.units(self.progress.steps - first_step);
            let rate = units / begin.elapsed().as_secs_f64();
            self.console.step(&StepDone {
                step: self.progress.steps,
                step_of_epoch: self.progress.steps_of_epoch,
                rate,
                share_of_peak: self.recorder.share_of_peak(rate),
                ahead: self.ahead(),
            });
            requests = self.recorder.take_requests();
            if requests.pause || requests.stop {
                break;
            }
            self.owes_evaluation = requests.evaluate || self.is_evaluation_due();
            self.save_within_epoch(&mut requests)?;
            self.keep_copies_if_due()?;
        }
        self.settle()?;
        self.note_epoch();
        // The device may have finished the last step only now.
        self.progress.train_seconds = seconds + begin.elapsed().as_secs_f64();
        self.console.end_epoch();
        Ok(requests.or(self.recorder.take_requests()))
    }

    /// Notes the losses of the epoch so far, for its next part.
    fn note_epoch(&mut self) {
        self.progress.epoch_loss = self.recorder.epoch_loss();
        self.progress.epoch_losses = Some(self.recorder.epoch_losses());
        self.progress.epoch_weight = self.recorder.epoch_weight();
    }

    /// Waits for the numbers of all steps.
    fn settle(&mut self) -> Result<(), TrainError> {
        while let Some(line) = self.recorder.settle()? {
            self.step_is_known(line)?;
        }
        Ok(())
    }

    /// Handles the numbers of a step.
    fn step_is_known(&mut self, line: TrainLine) -> Result<(), TrainError> {
        self.console.step_is_known(&line);
        if let Some(warning) = self.flat_loss.see(line.loss) {
            self.console.line(&warning);
        }
        for callback in &mut self.callbacks {
            let action = callback.on_step(&line).map_err(failed)?;
            self.own_requests = self.own_requests.or(request(action));
        }
        Ok(())
    }

    /// Saves a checkpoint if one is due. An evaluation after the same step comes first.
    fn save_within_epoch(&mut self, requests: &mut Requests) -> Result<(), TrainError> {
        let Some(checkpoints) = &mut self.checkpoints else {
            return Ok(());
        };
        for news in checkpoints.news()? {
            self.console.line(&news);
        }
        let due = checkpoints.is_due_after_step(self.progress.steps);
        let evaluates = self.owes_evaluation || self.is_epoch_over() || self.at_last_step();
        if (due || requests.save) && !evaluates {
            requests.save = false;
            self.save()?;
        }
        Ok(())
    }

    /// Saves the last state and waits until it is written. Returns whether it was, and true if the
    /// configuration asks for none.
    fn save_end(&mut self, end: &End) -> Result<bool, TrainError> {
        // A run that pauses needs a checkpoint, even if none is configured.
        if matches!(end, End::Paused(_)) && self.checkpoints.is_none() {
            let (context, folder, lock) = (self.context, self.home.as_deref(), self.lock.clone());
            let start = || setup::start_checkpoints(context, folder, lock, &self.before);
            self.checkpoints = context.group.busy().during(start)?;
        }
        let last = self.checkpoints.as_mut();
        if let Some(checkpoints) = last.filter(|last| last.lacks(&self.progress)) {
            // The last checkpoint must not be skipped because the one before is still being
            // written.
            let busy = self.context.group.busy();
            busy.during(|| checkpoints.catch_up());
            self.save()?;
        }
        let Some(checkpoints) = self.checkpoints.take() else {
            return Ok(!matches!(end, End::Paused(_)));
        };
        // However long the disk takes.
        let group = self.context.group;
        let (news, saved) = group.busy().during(|| checkpoints.finish(group))?;
        for news in news {
            self.console.line(&news);
        }
        Ok(saved)
    }

    fn save(&mut self) -> Result<(), TrainError> {
        self.settle()?;
        self.recorder.forget_saves();
        self.note_epoch();
        if self.checkpoints.is_none() {
            return Ok(());
        }
        let meta = self.meta();
        let state = self.parallel.state()?;
        let busy = self.context.group.busy();
        match &mut self.checkpoints {
            Some(checkpoints) => busy.during(|| checkpoints.save(state, &meta)),
            None => Ok(()),
        }
    }

    /// Keeps the state in the memory of agents after every `checkpoint.in_memory_every_steps`.
    fn keep_copies_if_due(&mut self) -> Result<(), TrainError> {
        let every = self.context.config.checkpoint.in_memory_every_steps;
        match self.progress.steps.is_multiple_of(every) {
            true => self.keep_copies(),
            false => Ok(()),
        }
    }

    /// Keeps the state in the memory of agents, if they have memory for it.
    fn keep_copies(&mut self) -> Result<(), TrainError> {
        if self.copies.is_none() {
            return Ok(());
        }
        self.settle()?;
        self.note_epoch();
        let meta = self.meta();
        let state = self.parallel.state()?;
        match &mut self.copies {
            Some(copies) => copies.keep(self.context.group, state, &meta),
            None => Ok(()),
        }
    }

    /// The data that a resumed run needs beside the tensors.
    fn meta(&mut self) -> Meta {
        self.progress.metrics_bytes = self.recorder.metrics_bytes();
        Meta {
            progress: self.progress.clone(),
            task: setup::identity(self.context, &self.task),
            config: self.context.config.to_toml().ok(),
            bf16_path: compute::bf16_path(self.context.config, &self.context.device.device)
                .map(|path| path.name().to_owned()),
        }
    }

    /// Records how the work of the epoch was shared among the ranks.
    fn share_work(&mut self) -> Result<(), TrainError> {
        let times = self.recorder.epoch_times();
        let own = Work {
            compute: times.own(),
            wait: times.wait,
            memory_mib: memory::resident_mib().unwrap_or_default(),
            device_mib: memory::device_mib(&self.context.device.device),
        };
        let message = serde_json::to_vec(&own).unwrap_or_default();
        let all = self.context.group.gather_bytes(&message)?;
        let all: Vec<Work> = all
            .iter()
            .map(|work| serde_json::from_slice(work).unwrap_or_default())
            .collect();
        let line = RanksLine {
            epoch: self.progress.epoch,
            step: self.progress.steps,
            compute: all.iter().map(|work| work.compute).collect(),
            wait: all.iter().map(|work| work.wait).collect(),
            memory_mib: all.iter().map(|work| work.memory_mib).collect(),
            device_mib: all.iter().filter_map(|work| work.device_mib).collect(),
        };
        self.console.ranks(&line);
        self.recorder.write(&Metric::Ranks(line))
    }

    /// Images, tokens or other units of `steps` steps over all ranks.
    fn units(&self, steps: u64) -> f64 {
        steps as f64 * self.units_of_step
    }
}

/// A rank's part of an epoch, as told to the others.
#[derive(Debug, Default, Serialize, Deserialize)]
struct Work {
    compute: f64,
    wait: f64,
    memory_mib: f64,
    device_mib: Option<f64>,
}

fn request(action: Action) -> Requests {
    Requests {
        save: action == Action::Save,
        stop: action == Action::Stop,
        evaluate: action == Action::Evaluate,
        pause: false,
    }
}

fn failed(error: CallbackError) -> TrainError {
    TrainError::Callback(error.to_string())
}
