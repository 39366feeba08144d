//! The training loop: epochs of steps of micro-batches, an evaluation after each epoch.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use burn_dist::parallel::{BucketSizes, Checksum, Parallel, ParallelOptions, Strategy};
use models::ImageClassifier;

use crate::batch::to_tensors;
use crate::config::Batching;
use crate::console::{Console, duration};
use crate::error::TrainError;
use crate::evaluate::{Evaluation, evaluate};
use crate::loss::objective;
use crate::metrics::{Metric, MetricsFile};
use crate::record::{Recorder, Step};
use crate::run::Session;
use crate::schedule::Schedule;
use crate::{optimizer, run_dir, seed};

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
    let parallel = Parallel::new(
        model,
        optimizer::build(&session.config.optimizer),
        parallel_options(session),
        session.group,
    )?;
    // Only now, when nothing is left that could be wrong with the configuration or the data.
    let main = session.world.is_main();
    let run_dir = main
        .then(|| {
            run_dir::create(
                session.options.run_dir.as_deref(),
                session.name,
                session.config,
            )
        })
        .transpose()?;
    let metrics = run_dir.as_deref().map(MetricsFile::open).transpose()?;
    let steps_per_epoch = session.data.train_sampler.steps_per_epoch() as u64;
    let mut training = Training {
        session,
        recorder: Recorder::new(
            session.group,
            metrics,
            session.config.log.every_steps,
            session.batching.global,
        ),
        console: Console::new(main),
        schedule: schedule(session, steps_per_epoch),
        steps_per_epoch,
        parallel,
        steps: 0,
        train_time: Duration::ZERO,
    };
    training.introduce(run_dir.as_deref());
    let mut summary = training.run()?;
    summary.run_dir = run_dir;
    training.conclude(&summary);
    Ok(summary)
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
    /// Steps so far.
    steps: u64,
    /// Time spent in them.
    train_time: Duration,
}

impl<M: ImageClassifier> Training<'_, M> {
    fn run(&mut self) -> Result<Summary, TrainError> {
        let begin = Instant::now();
        let epochs = self.session.config.train.epochs;
        let mut epoch = 0;
        loop {
            epoch += 1;
            let evaluation = self.epoch(epoch, epochs)?;
            // A faulty network or memory is found here rather than in the results.
            let checksum = self.parallel.verify_replicas()?;
            if epoch < epochs && !self.at_last_step() {
                continue;
            }
            let world = self.session.world;
            return Ok(Summary {
                epochs: epoch,
                steps: self.steps,
                total_time: begin.elapsed(),
                images_per_second: self.images(self.steps) / self.train_time.as_secs_f64(),
                nodes: self.session.group.nodes(),
                devices_per_node: world.local_size(),
                world_size: world.size(),
                evaluation,
                checksum,
                run_dir: None,
            });
        }
    }

    fn at_last_step(&self) -> bool {
        let limit = self.session.config.train.max_steps;
        limit.is_some_and(|limit| self.steps >= limit)
    }

    /// Training images, over all ranks, in `steps` steps.
    fn images(&self, steps: u64) -> f64 {
        steps as f64 * self.session.batching.global as f64
    }

    fn epoch(&mut self, epoch: u64, epochs: u64) -> Result<Evaluation, TrainError> {
        let begin = Instant::now();
        let first_step = self.steps;
        let loss = self.steps_of_epoch(epoch, epochs)?;
        let time = begin.elapsed();
        self.train_time += time;

        self.parallel.sync_buffers()?;
        let data = &self.session.data;
        let evaluation = evaluate(
            &self.parallel.valid(),
            &data.eval_loader,
            &data.eval_sampler,
            &self.session.device,
            self.session.group,
        )?;
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
        let images = self.images(self.steps - first_step);
        self.console.line(&format!(
            "epoch {epoch}/{epochs}: {}, train loss {loss:.4}, val loss {:.4}, val accuracy \
             {:.2} %, {:.0} images/s",
            duration(time),
            evaluation.loss,
            100.0 * evaluation.accuracy,
            images / time.as_secs_f64(),
        ));
        Ok(evaluation)
    }

    /// Trains until the epoch or the run ends; gives the mean loss.
    fn steps_of_epoch(&mut self, epoch: u64, epochs: u64) -> Result<f64, TrainError> {
        let session = self.session;
        let (begin, first_step) = (Instant::now(), self.steps);
        self.recorder.start_epoch();
        self.console
            .start_epoch(epoch, epochs, self.steps_per_epoch);
        // Samplers count epochs from 0.
        let order = session.data.train_sampler.epoch(epoch as usize - 1);
        let mut batches = session.data.train_loader.iter(order);
        for done in 1..=self.steps_per_epoch {
            if self.at_last_step() {
                break;
            }
            self.step(epoch, &mut batches)?;
            let images = self.images(self.steps - first_step);
            self.console.step(
                done,
                self.steps_per_epoch,
                self.recorder.latest(),
                images / begin.elapsed().as_secs_f64(),
            );
        }
        self.console.end_epoch();
        self.recorder.end_epoch()
    }

    /// One optimizer step.
    fn step(&mut self, epoch: u64, batches: &mut datasets::BatchIter) -> Result<(), TrainError> {
        let session = self.session;
        let config = session.config;
        let device = session.device.clone().autodiff();
        let number = self.steps + 1;
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
        self.steps = number;
        self.recorder.record(Step {
            number,
            epoch,
            loss: loss_sum / accumulate as f64,
            lr,
        })
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
    }

    fn conclude(&self, summary: &Summary) {
        if summary.world_size > 1 {
            let checksum = summary.checksum.to_string();
            self.console.line(&format!(
                "parameters are the same on all ranks, checksum {}",
                checksum.get(..16).unwrap_or_default()
            ));
        }
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
