//! The training loop: epochs of steps of micro-batches, an evaluation after each epoch.

use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use burn_dist::checkpoint::Source;
use burn_dist::parallel::{BucketSizes, Checksum, Parallel, ParallelOptions, Strategy};
use models::ImageClassifier;

use crate::batch::to_tensors;
use crate::checkpointing::Checkpoints;
use crate::config::Batching;
use crate::console::{Console, duration};
use crate::early_stopping::{is_better, monitored};
use crate::error::TrainError;
use crate::evaluate::{Evaluation, evaluate};
use crate::loss::objective;
use crate::metrics::{Metric, MetricsFile};
use crate::progress::{Meta, Progress, Task};
use crate::record::{Recorder, Step};
use crate::run::Session;
use crate::schedule::Schedule;
use crate::{optimizer, resume, run_dir, seed};

/// How a run went.
#[derive(Clone, Debug)]
pub struct Summary {
    /// Epochs that were begun.
    pub epochs: u64,
    /// Optimizer steps.
    pub steps: u64,
    /// From the first step to the end, evaluations included.
    pub total_time: Duration,
    /// Training images per second over all ranks, evaluations excluded.
    pub images_per_second: f64,
    /// Number of nodes.
    pub nodes: usize,
    /// Ranks, and with them devices, on this node.
    pub devices_per_node: usize,
    /// Number of ranks.
    pub world_size: usize,
    /// The last evaluation.
    pub evaluation: Evaluation,
    /// Checksum of the parameters, which all ranks were found to share.
    pub checksum: Checksum,
    /// The run folder; on the main rank.
    pub run_dir: Option<PathBuf>,
}

/// Trains `model`, which is on an autodiff device.
pub(crate) fn train<M: ImageClassifier>(
    session: &Session<'_>,
    model: M,
) -> Result<Summary, TrainError> {
    let (config, start) = (session.config, &session.start);
    let mut parallel = Parallel::new(
        model,
        optimizer::build(&config.optimizer),
        parallel_options(session),
        session.group,
    )?;
    let mut progress = match &start.checkpoint {
        Some(path) => restore(&mut parallel, path, &task(session))?,
        None => Progress::start(),
    };
    if start.of_another_run {
        progress.metrics_bytes = 0;
    }
    // Only now, when nothing is left that could be wrong with the configuration or the data.
    let main = session.world.is_main();
    let run_dir = main
        .then(|| run_dir::create(start.run_dir.as_deref(), session.name, config))
        .transpose()?;
    let metrics = run_dir
        .as_deref()
        .map(|folder| MetricsFile::open(folder, progress.metrics_bytes))
        .transpose()?;
    let checkpoints = checkpoints(session, run_dir.as_deref(), progress.steps)?;
    let steps_per_epoch = session.data.train_sampler.steps_per_epoch() as u64;
    let mut training = Training {
        session,
        recorder: Recorder::new(
            session.group,
            metrics,
            config.log.every_steps,
            session.batching.global,
        ),
        console: Console::new(main),
        schedule: schedule(session, steps_per_epoch),
        steps_per_epoch,
        parallel,
        checkpoints,
        steps_before: progress.steps,
        seconds_before: progress.train_seconds,
        progress,
    };
    training.introduce(run_dir.as_deref());
    let mut summary = training.run()?;
    summary.run_dir = run_dir;
    training.conclude(&summary);
    Ok(summary)
}

/// Continues from a checkpoint; gives how far the run was.
fn restore<M: ImageClassifier>(
    parallel: &mut Parallel<M>,
    path: &Path,
    task: &Task,
) -> Result<Progress, TrainError> {
    let source = Source::open(path)?;
    let meta = Meta::of(source.manifest(), task)?;
    parallel.restore(&source)?;
    Ok(meta.progress)
}

fn task(session: &Session<'_>) -> Task {
    let splits = &session.data.splits;
    Task {
        data: session.config.data.name.to_string(),
        train_samples: splits.train.len(),
        test_samples: splits.test.len(),
        classes: splits.train.class_names().len(),
        global_batch: session.batching.global,
        seed: session.config.train.seed,
    }
}

/// Every rank writes into the folder that rank 0 has chosen.
fn checkpoints(
    session: &Session<'_>,
    run_dir: Option<&Path>,
    steps: u64,
) -> Result<Option<Checkpoints>, TrainError> {
    let config = &session.config.checkpoint;
    if !config.wanted() {
        return Ok(None);
    }
    let own = run_dir.unwrap_or(Path::new(""));
    let own = std::path::absolute(own).unwrap_or(own.to_owned());
    let all = session.group.gather_bytes(own.as_os_str().as_bytes())?;
    let first = all.into_iter().next().unwrap_or_default();
    let folder = PathBuf::from(OsString::from_vec(first)).join(resume::FOLDER);
    let timeout = Duration::from_secs(session.config.parallel.timeout_seconds);
    Ok(Checkpoints::start(
        config,
        &folder,
        steps,
        timeout,
        session.group,
    )?)
}

fn schedule(session: &Session<'_>, steps_per_epoch: u64) -> Schedule {
    let config = session.config;
    let all = steps_per_epoch.saturating_mul(config.train.epochs);
    let total = config.train.max_steps.map_or(all, |limit| limit.min(all));
    Schedule::new(
        &config.schedule,
        config.optimizer.lr(),
        steps_per_epoch,
        total,
        session.group.size(),
    )
}

fn parallel_options(session: &Session<'_>) -> ParallelOptions {
    let config = session.config;
    ParallelOptions {
        strategy: Strategy::Ddp,
        accumulate: session.batching.accumulate,
        clip_norm: config.train.clip_norm,
        buckets: BucketSizes::from_mib(config.parallel.bucket_mib),
    }
}

/// A run in progress.
struct Training<'s, M: ImageClassifier> {
    session: &'s Session<'s>,
    parallel: Parallel<M>,
    recorder: Recorder,
    console: Console,
    schedule: Schedule,
    steps_per_epoch: u64,
    checkpoints: Option<Checkpoints>,
    progress: Progress,
    /// Steps that were done before this process continued.
    steps_before: u64,
    /// Seconds that they took.
    seconds_before: f64,
}

impl<M: ImageClassifier> Training<'_, M> {
    fn run(&mut self) -> Result<Summary, TrainError> {
        let begin = Instant::now();
        let epochs = self.session.config.train.epochs;
        let mut end = self.end_before(epochs);
        while !end {
            if self.progress.evaluated {
                self.progress.epoch += 1;
                self.progress.steps_of_epoch = 0;
                self.progress.epoch_loss = 0.0;
                self.progress.evaluated = false;
            }
            let reason = self.epoch(self.progress.epoch, epochs)?;
            // A faulty network or memory is found here rather than in the results.
            self.parallel.verify_replicas()?;
            end = reason.is_some() || self.end_before(epochs);
            if let Some(reason) = reason {
                self.console.line(&format!("stopped early: {reason}"));
            }
        }
        self.save_end()?;
        let progress = &self.progress;
        let steps = progress.steps - self.steps_before;
        let seconds = progress.train_seconds - self.seconds_before;
        let world = self.session.world;
        Ok(Summary {
            epochs: progress.epoch,
            steps: progress.steps,
            total_time: begin.elapsed(),
            images_per_second: match steps {
                0 => 0.0,
                _ => self.images(steps) / seconds,
            },
            nodes: self.session.group.nodes(),
            devices_per_node: world.local_size(),
            world_size: world.size(),
            evaluation: match progress.evaluation {
                Some(evaluation) => evaluation,
                None => self.evaluate()?,
            },
            checksum: self.parallel.verify_replicas()?,
            run_dir: None,
        })
    }

    /// Whether nothing is left to do.
    fn end_before(&self, epochs: u64) -> bool {
        let progress = &self.progress;
        progress.evaluated && (progress.epoch >= epochs || self.at_last_step())
    }

    fn at_last_step(&self) -> bool {
        let limit = self.session.config.train.max_steps;
        limit.is_some_and(|limit| self.progress.steps >= limit)
    }

    /// Training images, over all ranks, in `steps` steps.
    fn images(&self, steps: u64) -> f64 {
        steps as f64 * self.session.batching.global as f64
    }

    /// The rest of an epoch and its evaluation; says why the run should end early, if it should.
    fn epoch(&mut self, epoch: u64, epochs: u64) -> Result<Option<String>, TrainError> {
        let begin = Instant::now();
        let (first_step, seconds) = (self.progress.steps, self.progress.train_seconds);
        let loss = self.steps_of_epoch(epoch, epochs, begin, seconds)?;
        let time = begin.elapsed();
        self.progress.train_seconds = seconds + time.as_secs_f64();

        self.parallel.sync_buffers()?;
        let evaluation = self.evaluate()?;
        if !evaluation.loss.is_finite() {
            return Err(TrainError::Diverged {
                what: format!("the validation loss after epoch {epoch}"),
                value: evaluation.loss,
            });
        }
        self.recorder.write(&Metric::Eval {
            epoch,
            loss: evaluation.loss,
            accuracy: evaluation.accuracy,
            samples: evaluation.samples,
        })?;
        let images = self.images(self.progress.steps - first_step);
        self.console.line(&format!(
            "epoch {epoch}/{epochs}: {}, train loss {loss:.4}, val loss {:.4}, val accuracy \
             {:.2} %, {:.0} images/s",
            duration(time),
            evaluation.loss,
            100.0 * evaluation.accuracy,
            images / time.as_secs_f64(),
        ));
        self.progress.evaluated = true;
        self.progress.evaluation = Some(evaluation);
        let stopping = &self.session.config.early_stopping;
        let reason = self.progress.watch.see(stopping, &evaluation);
        let is_best = self.is_best(&evaluation);
        let steps = self.progress.steps;
        let due = |checkpoints: &Checkpoints| checkpoints.is_due_after_epoch(epoch, steps);
        if is_best || self.checkpoints.as_ref().is_some_and(due) {
            self.save()?;
        }
        Ok(reason)
    }

    fn evaluate(&self) -> Result<Evaluation, TrainError> {
        let data = &self.session.data;
        evaluate(
            &self.parallel.valid(),
            &data.eval_loader,
            &data.eval_sampler,
            &self.session.device,
            self.session.group,
        )
    }

    /// Whether this is the best evaluation so far, and the configuration wants to keep it.
    fn is_best(&mut self, evaluation: &Evaluation) -> bool {
        let config = &self.session.config.checkpoint;
        if !config.best {
            return false;
        }
        let value = monitored(config.monitor, evaluation);
        let best = self.progress.best;
        if best.is_some_and(|(_, best)| !is_better(config.monitor, value, best, 0.0)) {
            return false;
        }
        self.progress.best = Some((self.progress.steps, value));
        true
    }

    /// Trains until the epoch or the run ends; gives the mean loss.
    fn steps_of_epoch(
        &mut self,
        epoch: u64,
        epochs: u64,
        begin: Instant,
        seconds: f64,
    ) -> Result<f64, TrainError> {
        let session = self.session;
        let (first_step, done_before) = (self.progress.steps, self.progress.steps_of_epoch);
        self.recorder
            .start_epoch(done_before, self.progress.epoch_loss);
        self.console
            .start_epoch(epoch, epochs, self.steps_per_epoch);
        // Samplers count epochs from 0.
        let order = session.data.train_sampler.epoch(epoch as usize - 1);
        let order = order.from_step(done_before as usize);
        let mut batches = session.data.train_loader.iter(order);
        while self.progress.steps_of_epoch < self.steps_per_epoch && !self.at_last_step() {
            self.step(epoch, &mut batches)?;
            let images = self.images(self.progress.steps - first_step);
            self.console.step(
                self.progress.steps_of_epoch,
                self.steps_per_epoch,
                self.recorder.latest(),
                images / begin.elapsed().as_secs_f64(),
            );
            self.progress.train_seconds = seconds + begin.elapsed().as_secs_f64();
            self.save_within_epoch()?;
        }
        self.console.end_epoch();
        self.recorder.end_epoch()
    }

    /// Saves the state if it is time; at the end of an epoch, its evaluation comes first.
    fn save_within_epoch(&mut self) -> Result<(), TrainError> {
        let Some(checkpoints) = &mut self.checkpoints else {
            return Ok(());
        };
        for news in checkpoints.news() {
            self.console.line(&news);
        }
        let due = checkpoints.is_due_after_step(self.progress.steps);
        let end = self.progress.steps_of_epoch == self.steps_per_epoch || self.at_last_step();
        if (due || self.recorder.take_wish()) && !end {
            self.save()?;
        }
        Ok(())
    }

    /// Saves the last state, and waits until everything is written.
    fn save_end(&mut self) -> Result<(), TrainError> {
        let steps = self.progress.steps;
        let lacks = |checkpoints: &Checkpoints| checkpoints.lacks(steps);
        if self.checkpoints.as_ref().is_some_and(lacks) {
            self.save()?;
        }
        for news in self
            .checkpoints
            .take()
            .map(Checkpoints::finish)
            .into_iter()
            .flatten()
        {
            self.console.line(&news);
        }
        Ok(())
    }

    fn save(&mut self) -> Result<(), TrainError> {
        let Some(checkpoints) = &mut self.checkpoints else {
            return Ok(());
        };
        self.progress.epoch_loss = self.recorder.flush()?;
        self.progress.metrics_bytes = self.recorder.metrics_bytes()?;
        let meta = Meta {
            progress: self.progress.clone(),
            task: task(self.session),
        };
        checkpoints.save(self.parallel.state(), &meta);
        Ok(())
    }

    /// One optimizer step.
    fn step(&mut self, epoch: u64, batches: &mut datasets::BatchIter) -> Result<(), TrainError> {
        let session = self.session;
        let config = session.config;
        let device = session.device.clone().autodiff();
        let number = self.progress.steps + 1;
        device.seed(seed::of_step(
            config.train.seed,
            session.world.rank(),
            number,
        ));
        let Batching { accumulate, .. } = session.batching;
        let mut loss_sum = 0.0;
        for batch in batches.by_ref().take(accumulate) {
            let (images, targets) = to_tensors(batch?, &device);
            let logits = self.parallel.model().forward(images);
            let loss = objective(logits, targets, config.train.label_smoothing);
            loss_sum += f64::from(loss.clone().into_scalar::<f32>());
            self.parallel.backward(loss)?;
        }
        let lr = self.schedule.lr(number);
        let report = self.parallel.step(lr)?;
        if !report.applied {
            return Err(TrainError::Diverged {
                what: format!("the norm of the gradient of step {number}"),
                value: report.gradient_norm.unwrap_or(f64::NAN),
            });
        }
        self.progress.steps = number;
        self.progress.steps_of_epoch += 1;
        let overdue = self
            .checkpoints
            .as_ref()
            .is_some_and(Checkpoints::is_overdue);
        let step = Step {
            number,
            epoch,
            loss: loss_sum / accumulate as f64,
            lr,
        };
        self.recorder.record(step, overdue)
    }

    fn introduce(&self, run_dir: Option<&std::path::Path>) {
        let session = self.session;
        let Batching {
            global,
            micro,
            accumulate,
        } = session.batching;
        let (group, splits) = (session.group, &session.data.splits);
        let size = group.size();
        self.console.line(&format!(
            "{}: {} parameters, {} training and {} test images",
            session.name,
            self.parallel.num_parameters(),
            splits.train.len(),
            splits.test.len(),
        ));
        let ranks = match size {
            1 => "1 rank".to_owned(),
            _ => format!("{size} ranks over {}", group.transport()),
        };
        self.console.line(&format!(
            "{ranks}, global batch {global} = {micro} × {accumulate} accumulated × {size}, {} \
             steps per epoch",
            self.steps_per_epoch
        ));
        if let Some(folder) = run_dir {
            self.console
                .line(&format!("run folder {}", folder.display()));
        }
        for note in &session.start.notes {
            self.console.line(note);
        }
    }

    fn conclude(&self, summary: &Summary) {
        let checksum = summary.checksum.to_string();
        let checksum = checksum.get(..16).unwrap_or_default();
        self.console.line(&match summary.world_size {
            1 => format!("parameters have the checksum {checksum}"),
            _ => format!("parameters are the same on all ranks, checksum {checksum}"),
        });
        self.console.line(&format!(
            "total time {}, throughput {:.0} images/s, nodes {}, devices per node {}, world size \
             {}",
            duration(summary.total_time),
            summary.images_per_second,
            summary.nodes,
            summary.devices_per_node,
            summary.world_size,
        ));
    }
}
