//! Records the numbers of every step: averages them over the ranks, checks and writes them.
//!
//! The mean over the ranks runs in the background, so that the next step need not wait.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

use burn_dist::{Buffer, Handle, ProcessGroup, ReduceOp};

use crate::error::TrainError;
use crate::eval::loss::StepLoss;
use crate::run::gallery::Gallery;
use crate::run::lock::RunLock;
use crate::run::loggers::{LoggedEnd, Loggers};
use crate::run::metrics::{Metric, MetricsFile, StepTimes, TrainLine};
use crate::run::throughput::Throughput;
use crate::system::memory;

/// Requests of a rank. They travel with the loss, so that all ranks act after the same step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Requests {
    /// Save a checkpoint.
    pub save: bool,
    /// Evaluate within the epoch.
    pub evaluate: bool,
    /// End the run with an evaluation.
    pub stop: bool,
    /// Pause at once, to be resumed later.
    pub pause: bool,
}

impl Requests {
    /// Encodes as numbers whose sum over the ranks is above zero if any rank asks.
    pub fn encode(self) -> [f64; 4] {
        [self.save, self.stop, self.pause, self.evaluate]
            .map(|request| f64::from(u8::from(request)))
    }

    /// Decodes a sum or mean over the ranks.
    pub fn decode(numbers: &[f64]) -> Self {
        let any = |index: usize| numbers.get(index).is_some_and(|number| *number > 0.0);
        Self {
            save: any(0),
            stop: any(1),
            pause: any(2),
            evaluate: any(3),
        }
    }

    /// The union of both.
    pub fn or(self, other: Self) -> Self {
        Self {
            save: self.save || other.save,
            stop: self.stop || other.stop,
            pause: self.pause || other.pause,
            evaluate: self.evaluate || other.evaluate,
        }
    }
}

/// One step on this rank.
#[derive(Clone, Debug)]
pub struct Step {
    /// Steps of the run so far, including this one.
    pub number: u64,
    /// Epoch, from 1.
    pub epoch: u64,
    /// Learning rate.
    pub lr: f64,
    /// Seconds of training in the whole run so far.
    pub elapsed: f64,
    /// This rank's time by phase.
    pub times: StepTimes,
    /// Gradient norm, if computed.
    pub gradient_norm: Option<f64>,
    /// Gradient norms by parameter path, if requested.
    pub gradient_norms: Option<BTreeMap<String, f64>>,
    /// Loss scale, in half precision.
    pub loss_scale: Option<f64>,
    /// Steps skipped so far, in half precision.
    pub skipped_steps: Option<u64>,
    /// All ranks skipped this step, because the scaled loss or a gradient overflowed.
    pub skipped: bool,
}

/// A step that the device may still be computing.
struct Computing {
    step: Step,
    loss: StepLoss,
    requests: Requests,
    /// Time at which the device finished, if known. A loss that arrived early is read later without
    /// a wait.
    ended: Option<Instant>,
}

/// A step whose loss is being averaged over the ranks.
struct Pending {
    step: Step,
    ended: Instant,
    mean: Handle,
    /// Whether the numbers begin with sums of losses and their weights.
    weighted: bool,
}

/// Steps since the last line in the file.
struct Window {
    begin: Instant,
    steps: u64,
    times: StepTimes,
}

impl Window {
    fn starting(begin: Instant) -> Self {
        Self {
            begin,
            steps: 0,
            times: StepTimes::default(),
        }
    }
}

/// Steps, and how many of them were skipped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Skipped {
    /// Skipped steps.
    pub skipped: u64,
    /// All steps.
    pub steps: u64,
}

impl Skipped {
    /// Whether most steps were skipped.
    pub fn is_most(self) -> bool {
        2 * self.skipped > self.steps
    }

    /// Whether at least nine of ten steps were skipped.
    pub fn is_nearly_all(self) -> bool {
        self.skipped > 0 && 10 * self.skipped >= 9 * self.steps
    }
}

/// Cost of the arithmetic of a run.
#[derive(Clone, Copy, Debug, Default)]
pub struct Work {
    /// Floating-point operations of forward and backward for one image, token or other unit.
    pub flops_per_unit: Option<f64>,
    /// Peak floating-point operations per second of all devices together.
    pub peak_flops: Option<f64>,
}

/// Collects and writes the numbers of a run.
pub struct Recorder {
    group: ProcessGroup,
    metrics: Option<MetricsFile>,
    loggers: Loggers,
    /// Lock on the folder of the files.
    lock: Option<Arc<RunLock>>,
    /// Number of this rank's first share of a step, and number of all shares: of virtual ranks, or
    /// one.
    shares: (usize, usize),
    /// Steps between two lines.
    every: u64,
    /// Name of the unit of throughput, and units in a global batch.
    units: (&'static str, f64),
    work: Work,
    computing: Option<Computing>,
    pending: Option<Pending>,
    window: Window,
    epoch_loss: f64,
    epoch_losses: u64,
    /// Sum of the weights of the epoch's losses, if they have some.
    epoch_weight: Option<f64>,
    /// Skipped steps of the run, in half precision, and their number before this process's part of
    /// the epoch.
    skipped: Option<u64>,
    skipped_before: Option<u64>,
    /// Steps of this process's part of the epoch.
    epoch_steps: u64,
    /// Sum over this process's steps of the epoch.
    epoch_times: StepTimes,
    /// Requests of all ranks at the last known step.
    requests: Requests,
}

impl Recorder {
    /// Makes a recorder that writes to `metrics` and `loggers` every `every` steps.
    ///
    /// A global batch has that many `units`. Only the main rank has files.
    pub fn new(
        group: &ProcessGroup,
        (metrics, loggers): (Option<MetricsFile>, Loggers),
        every: u64,
        units: (&'static str, f64),
        work: Work,
    ) -> Self {
        Self {
            group: group.clone(),
            metrics,
            loggers,
            lock: None,
            shares: (0, 1),
            every: every.max(1),
            units,
            work,
            computing: None,
            pending: None,
            window: Window::starting(Instant::now()),
            epoch_loss: 0.0,
            epoch_losses: 0,
            epoch_weight: None,
            skipped: None,
            skipped_before: None,
            epoch_steps: 0,
            epoch_times: StepTimes::default(),
            requests: Requests::default(),
        }
    }

    /// Adds the losses of `count` shares of a step in their order. This rank's begin with number
    /// `first`. One share is each rank's own.
    pub(crate) fn of_shares(self, first: usize, count: usize) -> Self {
        Self {
            shares: (first, count),
            ..self
        }
    }

    /// Writes only as long as `lock` is held.
    pub(crate) fn guarded_by(self, lock: Option<Arc<RunLock>>) -> Self {
        Self { lock, ..self }
    }

    /// Starts the clock and the mean loss of an epoch.
    ///
    /// `losses` is the number of losses known from before, and `loss` their sum. If they have
    /// weights, the sum is over `weight`.
    pub fn start_epoch(&mut self, losses: u64, loss: f64, weight: Option<f64>) {
        self.window = Window::starting(Instant::now());
        self.epoch_loss = loss;
        self.epoch_losses = losses;
        self.epoch_weight = weight;
        self.skipped_before = None;
        self.epoch_steps = 0;
        self.epoch_times = StepTimes::default();
    }

    /// Takes the numbers of the step that just ended, and the mean loss of this rank's samples.
    ///
    /// The rank's requests travel with the loss.
    pub fn record(&mut self, step: Step, loss: StepLoss, requests: Requests) {
        self.epoch_times.add(&step.times);
        let ended = loss.is_known().then(Instant::now);
        self.computing = Some(Computing {
            step,
            loss,
            requests,
            ended,
        });
    }

    /// Reads the loss of the last step and returns the numbers of the step before it.
    ///
    /// Waits until the device has finished the last step, and starts averaging its loss over ranks.
    /// Call it when the device has the next step to do: then neither the device nor the ranks wait.
    ///
    /// # Errors
    /// Fails if the device or a rank failed, if the loss of the previous step is not finite, or if
    /// the run folder belongs to another run.
    pub fn read(&mut self) -> Result<Option<TrainLine>, TrainError> {
        let Some(computing) = self.computing.take() else {
            return Ok(None);
        };
        let Computing {
            step,
            loss,
            requests,
            ended,
        } = computing;
        let before = self.settle_pending()?;
        let weights = loss.weights().map(<[f64]>::to_vec);
        let losses = loss.wait()?;
        let (first, count) = self.shares;
        let own = |values: &[f64]| {
            let mut all = vec![0.0; count];
            for (place, value) in all.iter_mut().skip(first).zip(values) {
                *place = *value;
            }
            all
        };
        let mut numbers = own(&losses);
        numbers.extend(weights.iter().flat_map(|weights| own(weights)));
        numbers.extend(requests.encode());
        // Of virtual ranks, every number comes from one rank, and zeros change no bit of it.
        let op = match count {
            1 => ReduceOp::Mean,
            _ => ReduceOp::Sum,
        };
        self.pending = Some(Pending {
            weighted: weights.is_some(),
            step,
            ended: ended.unwrap_or_else(Instant::now),
            mean: self
                .group
                .start_all_reduce(Buffer::from_slice(&numbers), op),
        });
        Ok(before)
    }

    /// Waits for the numbers of the oldest open step. `None` if no step is open.
    ///
    /// # Errors
    /// As [`Recorder::read`].
    pub fn settle(&mut self) -> Result<Option<TrainLine>, TrainError> {
        loop {
            if self.pending.is_none() {
                self.read()?;
            }
            let is_last = self.computing.is_none();
            let line = self.settle_pending()?;
            if line.is_some() || is_last {
                return Ok(line);
            }
        }
    }

    /// Waits for the pending mean. A skipped step without a loss has no numbers.
    fn settle_pending(&mut self) -> Result<Option<TrainLine>, TrainError> {
        let Some(Pending {
            step,
            ended,
            mean,
            weighted,
        }) = self.pending.take()
        else {
            return Ok(None);
        };
        let mean = mean.wait()?;
        let mean = mean.as_slice::<f64>().map_err(burn_dist::Error::from)?;
        let (_, count) = self.shares;
        let (losses, rest) = mean.split_at(count.min(mean.len()));
        let (weights, requests) = rest.split_at(if weighted { count } else { 0 }.min(rest.len()));
        let loss: f64 = losses.iter().sum();
        // The ratio of two means over the ranks is that of the sums.
        let (loss, weight) = match weighted {
            true => {
                let weight: f64 = weights.iter().sum();
                let total = match count {
                    1 => weight * self.group.size() as f64,
                    _ => weight,
                };
                (loss / weight, Some(total))
            }
            false => (loss / count as f64, None),
        };
        let requests = Requests::decode(requests);
        self.requests = self.requests.or(requests);
        self.window.steps += 1;
        self.epoch_steps += 1;
        self.window.times.add(&step.times);
        if let Some(skipped) = step.skipped_steps {
            let before = skipped.saturating_sub(u64::from(step.skipped));
            self.skipped_before.get_or_insert(before);
            self.skipped = Some(skipped);
        }
        if !loss.is_finite() && step.skipped {
            return Ok(None);
        }
        // All ranks have the same mean, so all of them stop here.
        if !loss.is_finite() {
            return Err(TrainError::Diverged {
                what: format!("the training loss of step {}", step.number),
                value: loss,
                state: step.number.saturating_sub(1),
            });
        }
        self.epoch_loss += loss * weight.unwrap_or(1.0);
        self.epoch_losses += 1;
        if let Some(weight) = weight {
            *self.epoch_weight.get_or_insert(0.0) += weight;
        }
        let line = self.line(&step, loss, ended);
        if step.number.is_multiple_of(self.every) {
            self.window = Window::starting(ended);
            self.write(&Metric::Train(line.clone()))?;
        }
        Ok(Some(line))
    }

    /// Fraction of the devices' peak at a rate in units per second (MFU), if known.
    pub fn share_of_peak(&self, rate: f64) -> Option<f64> {
        let flops = self.work.flops_per_unit.map(|flops| flops * rate);
        flops
            .zip(self.work.peak_flops)
            .map(|(flops, peak)| flops / peak)
    }

    fn line(&self, step: &Step, loss: f64, ended: Instant) -> TrainLine {
        let (unit, units_of_step) = self.units;
        let units = self.window.steps as f64 * units_of_step;
        let seconds = ended.duration_since(self.window.begin).as_secs_f64();
        // Avoids infinity, which JSON cannot hold, if the clock is too coarse for a step.
        let per_second = units / seconds.max(1e-9);
        let work = self.work.flops_per_unit;
        let flops = work.map(|flops| flops * per_second);
        let due = step.number.is_multiple_of(self.every);
        TrainLine {
            step: step.number,
            epoch: step.epoch,
            loss,
            lr: step.lr,
            throughput: Throughput::new(unit, per_second),
            elapsed: step.elapsed,
            time: self.window.times.mean(self.window.steps),
            memory_mib: due.then(memory::resident_mib).flatten(),
            tflops: flops.map(|flops| flops / 1e12),
            share_of_peak: self.share_of_peak(per_second),
            gradient_norm: step.gradient_norm,
            gradient_norms: step.gradient_norms.clone().filter(|_| due),
            loss_scale: step.loss_scale,
            skipped_steps: step.skipped_steps,
        }
    }

    /// Sum of the known losses of the epoch, each times its weight, if it has one.
    pub fn epoch_loss(&self) -> f64 {
        self.epoch_loss
    }

    /// Number of known losses of the epoch.
    pub fn epoch_losses(&self) -> u64 {
        self.epoch_losses
    }

    /// Sum of the weights of the known losses, if they have some.
    pub fn epoch_weight(&self) -> Option<f64> {
        self.epoch_weight
    }

    /// Mean of the known losses of the epoch, if any.
    pub fn mean_loss(&self) -> Option<f64> {
        let weight = self.epoch_weight.unwrap_or(self.epoch_losses as f64);
        (self.epoch_losses > 0).then(|| self.epoch_loss / weight)
    }

    /// Skipped steps of the run as far as known, in half precision.
    pub fn skipped_steps(&self) -> Option<u64> {
        self.skipped
    }

    /// Steps of this process's part of the epoch, and how many of them were skipped.
    pub fn skipped_in_epoch(&self) -> Skipped {
        let skipped = self.skipped.zip(self.skipped_before);
        Skipped {
            skipped: skipped.map_or(0, |(skipped, before)| skipped.saturating_sub(before)),
            steps: self.epoch_steps,
        }
    }

    /// This rank's time by phase, over this process's steps of the epoch.
    pub fn epoch_times(&self) -> StepTimes {
        self.epoch_times
    }

    /// Syncs the metrics file and returns its length in bytes; 0 on ranks without one.
    pub fn metrics_bytes(&mut self) -> u64 {
        let busy = self.group.busy();
        let length = || self.metrics.as_mut().map_or(0, MetricsFile::synced_length);
        busy.during(length)
    }

    /// Takes the requests of all ranks at the known steps.
    ///
    /// All ranks get the same answer at the same step, once.
    pub fn take_requests(&mut self) -> Requests {
        std::mem::take(&mut self.requests)
    }

    /// Drops requests to save: the state after all known steps is saved.
    pub fn forget_saves(&mut self) {
        self.requests.save = false;
    }

    /// Writes a line. A disk error only warns.
    ///
    /// # Errors
    /// Fails if the run folder belongs to another run.
    pub fn write(&mut self, metric: &Metric) -> Result<(), TrainError> {
        self.group.busy().during(|| self.put(metric))
    }

    fn put(&mut self, metric: &Metric) -> Result<(), TrainError> {
        if let Some(lock) = &self.lock {
            lock.check_held()?;
        }
        if let Some(file) = &mut self.metrics {
            file.write(metric);
        }
        self.loggers.metric(metric);
        Ok(())
    }

    /// Passes pictures of an evaluation to the loggers.
    pub fn show(&mut self, gallery: impl FnOnce() -> Gallery) {
        let loggers = &mut self.loggers;
        if !loggers.is_empty() {
            self.group.busy().during(|| loggers.show(&gallery()));
        }
    }

    /// Tells the loggers that the run ended, and how.
    pub fn end(&mut self, end: LoggedEnd) {
        self.group.busy().during(|| self.loggers.end(end));
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn one_ranks_request_is_everybodys() {
        let save = Requests {
            save: true,
            ..Requests::default()
        };
        let pause = Requests {
            pause: true,
            ..Requests::default()
        };
        let mut mean = [0.0; 4];
        for requests in [save, pause, Requests::default()] {
            for (sum, number) in mean.iter_mut().zip(requests.encode()) {
                *sum += number / 3.0;
            }
        }
        assert_eq!(Requests::decode(&mean), save.or(pause));
        assert_eq!(Requests::decode(&[0.0; 4]), Requests::default());
    }

    /// One image in a global batch.
    const UNITS: (&str, f64) = ("images", 1.0);

    /// Losses count by their weight, in a step over the ranks and in an epoch over the steps.
    #[test]
    fn losses_count_by_their_weight() {
        let groups = ProcessGroup::in_process(2, &burn_dist::GroupOptions::default()).unwrap();
        let of_rank = |(rank, group): (usize, ProcessGroup)| {
            let mut recorder = Recorder::new(
                &group,
                (None, Loggers::default()),
                1,
                UNITS,
                Work::default(),
            );
            recorder.start_epoch(0, 0.0, None);
            let mut losses = Vec::new();
            // Sums of losses and their weights on both ranks, in two steps.
            for (number, sums) in (1..).zip([[(3.0, 1.0), (5.0, 3.0)], [(1.0, 2.0), (1.0, 2.0)]]) {
                let (sum, weight) = sums[rank];
                let loss = StepLoss::known_sum(sum, weight);
                recorder.record(step(number), loss, Requests::default());
                losses.push(recorder.settle().unwrap().unwrap().loss);
            }
            (losses, recorder.mean_loss(), recorder.epoch_weight())
        };
        std::thread::scope(|scope| {
            let ranks = groups.into_iter().enumerate();
            let ranks: Vec<_> = ranks
                .map(|rank| scope.spawn(move || of_rank(rank)))
                .collect();
            for rank in ranks {
                let found = rank.join().unwrap();
                assert_eq!(found, (vec![2.0, 0.5], Some(10.0 / 8.0), Some(8.0)));
            }
        });
    }

    fn step(number: u64) -> Step {
        Step {
            number,
            epoch: 1,
            lr: 0.1,
            elapsed: 1.0,
            times: StepTimes {
                forward: number as f64,
                ..StepTimes::default()
            },
            gradient_norm: None,
            gradient_norms: None,
            loss_scale: None,
            skipped_steps: None,
            skipped: false,
        }
    }

    #[test]
    fn a_loss_that_is_no_number_ends_the_run_unless_the_step_was_skipped() {
        let none = Requests::default();
        let group = ProcessGroup::single();
        let mut recorder = Recorder::new(
            &group,
            (None, Loggers::default()),
            1,
            UNITS,
            Work::default(),
        );
        recorder.start_epoch(0, 0.0, None);
        let skipped = Step {
            skipped: true,
            ..step(2)
        };
        recorder.record(step(1), StepLoss::known(3.0), none);
        recorder.read().unwrap();
        recorder.record(skipped, StepLoss::known(f32::NAN), none);
        assert_eq!(recorder.read().unwrap().unwrap().step, 1);
        recorder.record(step(3), StepLoss::known(1.0), none);
        assert_eq!(recorder.settle().unwrap().unwrap().step, 3);
        assert_eq!(recorder.settle().unwrap(), None);
        assert_eq!(recorder.mean_loss(), Some(2.0));
        recorder.record(step(4), StepLoss::known(f32::NAN), none);
        let error = recorder.settle().unwrap_err();
        assert!(error.to_string().contains("step 4"), "{error}");
    }

    #[test]
    fn skipped_steps_are_counted_by_epoch_and_none_of_them_is_a_loss_of_0() {
        let group = ProcessGroup::single();
        let mut recorder = Recorder::new(
            &group,
            (None, Loggers::default()),
            1,
            UNITS,
            Work::default(),
        );
        // Resumes a run with seven skipped steps.
        let mut skipped = 7;
        for (epoch, steps) in [(1, [true, false, true]), (2, [true, true, true])] {
            recorder.start_epoch(0, 0.0, None);
            for is_skipped in steps {
                skipped += u64::from(is_skipped);
                let step = Step {
                    skipped: is_skipped,
                    skipped_steps: Some(skipped),
                    ..step(3 * epoch)
                };
                let loss = if is_skipped { f32::INFINITY } else { 2.0 };
                recorder.record(step, StepLoss::known(loss), Requests::default());
                recorder.read().unwrap();
            }
            while recorder.settle().unwrap().is_some() {}
            let expected = if epoch == 1 {
                (2, Some(2.0))
            } else {
                (3, None)
            };
            let found = recorder.skipped_in_epoch();
            assert_eq!(found.steps, steps.len() as u64);
            let found = (found.skipped, recorder.mean_loss());
            assert_eq!(found, expected, "epoch {epoch}");
        }
        assert_eq!(recorder.skipped_steps(), Some(12));
    }

    /// The numbers of a last step before an evaluation or checkpoint are read at once. Its time
    /// must be neither zero nor that of another step.
    #[test]
    fn a_step_has_the_rate_of_its_own_time() {
        let group = ProcessGroup::single();
        let mut recorder = Recorder::new(
            &group,
            (None, Loggers::default()),
            1,
            UNITS,
            Work::default(),
        );
        recorder.start_epoch(0, 0.0, None);
        let mut lines = Vec::new();
        for (number, millis) in [(1, 20), (2, 60)] {
            std::thread::sleep(Duration::from_millis(millis));
            lines.extend(recorder.read().unwrap());
            recorder.record(step(number), StepLoss::known(1.0), Requests::default());
        }
        while let Some(line) = recorder.settle().unwrap() {
            lines.push(line);
        }
        let seconds: Vec<f64> = lines
            .iter()
            .map(|l| 1.0 / l.throughput.per_second)
            .collect();
        assert!(seconds[0] >= 0.02 && seconds[1] >= 0.06, "{seconds:?}");
    }

    #[test]
    fn rates_are_those_since_the_last_line() {
        let work = Work {
            flops_per_unit: Some(2.0),
            peak_flops: Some(1e30),
        };
        let mut recorder = Recorder::new(
            &ProcessGroup::single(),
            (None, Loggers::default()),
            2,
            ("images", 10.0),
            work,
        );
        recorder.start_epoch(0, 0.0, None);
        let none = Requests::default();
        let record = |recorder: &mut Recorder, number| {
            let before = recorder.read().unwrap();
            recorder.record(step(number), StepLoss::known(number as f32), none);
            before
        };
        assert_eq!(record(&mut recorder, 1), None);
        assert_eq!(record(&mut recorder, 2), None);
        let first = record(&mut recorder, 3).unwrap();
        assert_eq!((first.step, first.time.forward), (1, 1.0));
        assert!(first.memory_mib.is_none());
        let second = recorder.settle().unwrap().unwrap();
        assert_eq!((second.step, second.time.forward), (2, 1.5));
        assert!(second.memory_mib.is_some());
        assert_eq!(
            second.tflops,
            Some(second.throughput.per_second * 2.0 / 1e12)
        );
        let third = recorder.settle().unwrap().unwrap();
        assert_eq!((third.step, third.time.forward), (3, 3.0));
        assert_eq!(recorder.settle().unwrap(), None);
        assert_eq!(recorder.mean_loss(), Some(2.0));
        assert_eq!(recorder.epoch_times().own(), 6.0);
    }
}
