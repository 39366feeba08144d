//! One optimizer step.

use std::collections::BTreeMap;
use std::time::Instant;

use burn_dist::parallel::ParameterSpec;

use super::{Training, failed};
use crate::config::{Batching, Config};
use crate::error::TrainError;
use crate::eval::loss::StepLoss;
use crate::run::metrics::StepTimes;
use crate::system::signals;
use crate::task::{Loss, Task};
use crate::train::checkpointing::Checkpoints;
use crate::train::context::training_device;
use crate::train::record::{Requests, Step};
use crate::train::seed;

impl<T: Task> Training<'_, T> {
    /// Trains on the next micro-batches; `elapsed` gives the seconds of training so far.
    pub(super) fn step(
        &mut self,
        batches: &mut T::Batches,
        elapsed: impl Fn() -> f64,
    ) -> Result<(), TrainError> {
        let context = self.context;
        let config = context.config;
        let device = training_device(context);
        let number = self.progress.steps + 1;
        let rank = context.world.rank();
        device.seed(seed::of_step(config.train.seed, rank, number));
        let Batching { accumulate, .. } = context.batching;
        let mut times = StepTimes::default();
        let mut losses = Vec::with_capacity(self.parallel.micro_batches());
        let mut weights: Vec<f64> = Vec::new();
        for _ in 0..self.parallel.micro_batches() {
            let mut watch = Watch::start();
            let share = self.parallel.next_share();
            let first = share.filter(|share| share.micro_batch == 0);
            if let Some(share) = first {
                device.seed(seed::of_step(config.train.seed, share.virtual_rank, number));
            }
            let Some(batch) = batches.next() else {
                break;
            };
            let batch = self.task.to_device(batch?, &device)?;
            times.data += watch.lap();
            let dtype = self.parallel.compute_dtype();
            let Loss { value, weight } = self.task.loss(self.parallel.model(), batch, dtype);
            if share.is_none_or(|share| share.counts) {
                losses.push(value.clone().inner());
                if weights.is_empty() || first.is_some() {
                    weights.push(0.0);
                }
                if let Some(sum) = weights.last_mut() {
                    *sum += weight;
                }
            }
            times.forward += watch.lap();
            match self.task.is_weighted() {
                true => self.parallel.backward_weighted(value, weight)?,
                false => self.parallel.backward(value)?,
            }
            times.backward += watch.lap();
        }
        let mut lr = self.schedule.lr(number);
        for callback in &mut self.callbacks {
            lr = callback.learning_rate(number, lr).map_err(failed)?;
        }
        let mut watch = Watch::start();
        let mut norms = None;
        let report =
            match config.log.gradient_norms && number.is_multiple_of(config.log.every_steps) {
                true => self.parallel.step_with(lr, |gradients| {
                    norms = Some(gradients.norms()?);
                    Ok(())
                })?,
                false => self.parallel.step(lr)?,
            };
        times.wait = report.waited.as_secs_f64();
        let shares = weights.len();
        let weights = self.task.is_weighted().then_some(weights);
        let loss = StepLoss::start_reading(losses, (shares, weights), number)?;
        // Read only now: the call waits for the device, which has all of this step queued.
        let before = self.recorder.read()?;
        times.update = watch.lap() - times.wait;
        // A scaled loss overflowed because of its scale; the next one is smaller.
        if !report.applied && report.loss_scale.is_none() {
            return Err(TrainError::Diverged {
                what: format!("the norm of the gradient of step {number}"),
                value: report.gradient_norm.unwrap_or(f64::NAN),
                state: number - 1,
            });
        }
        if report.applied {
            self.applied = number;
        }
        self.progress.steps = number;
        let batches = self.progress.batches.as_mut();
        batches
            .into_iter()
            .for_each(|batches| *batches += accumulate as u64);
        self.progress.steps_of_epoch += 1;
        self.progress.train_seconds = elapsed();
        let step = Step {
            number,
            epoch: self.progress.epoch,
            lr,
            elapsed: self.progress.train_seconds,
            times,
            gradient_norm: report.gradient_norm.filter(|norm| norm.is_finite()),
            gradient_norms: norms.map(|norms| by_path(self.parallel.parameters(), norms)),
            loss_scale: report.loss_scale,
            skipped_steps: report.loss_scale.map(|_| report.skipped_steps),
            skipped: !report.applied,
        };
        let requests = self.requests();
        self.recorder.record(step, loss, requests);
        before.map_or(Ok(()), |line| self.step_is_known(line))
    }

    /// This rank's requests: of its callbacks, its clock and signals.
    pub(super) fn requests(&mut self) -> Requests {
        let overdue = Checkpoints::is_overdue;
        let outside = Requests {
            save: self.checkpoints.as_ref().is_some_and(overdue),
            evaluate: false,
            stop: false,
            pause: self.reason_to_pause().is_some(),
        };
        std::mem::take(&mut self.own_requests).or(outside)
    }

    /// Reason for this rank to pause, if any.
    pub(super) fn reason_to_pause(&self) -> Option<&'static str> {
        reason_to_pause(self.context.config, self.begin)
    }
}

/// Reason to pause for a rank whose run began at `begin`, if any.
pub(super) fn reason_to_pause(config: &Config, begin: Instant) -> Option<&'static str> {
    let limit = config.train.max_minutes;
    let over = limit.is_some_and(|limit| begin.elapsed().as_secs_f64() >= 60.0 * limit);
    signals::request().or(over.then_some("train.max_minutes"))
}

/// The finite norms by parameter path.
fn by_path(parameters: &[ParameterSpec], norms: Vec<Option<f64>>) -> BTreeMap<String, f64> {
    let named = parameters.iter().zip(norms);
    let finite = named.filter_map(|(parameter, norm)| {
        let norm = norm.filter(|norm| norm.is_finite())?;
        Some((parameter.path.clone(), norm))
    });
    finite.collect()
}

/// A stopwatch for consecutive phases.
struct Watch(Instant);

impl Watch {
    fn start() -> Self {
        Self(Instant::now())
    }

    /// Seconds since the last lap.
    fn lap(&mut self) -> f64 {
        let now = Instant::now();
        let lap = now.duration_since(self.0);
        self.0 = now;
        lap.as_secs_f64()
    }
}
