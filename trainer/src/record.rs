//! The numbers of every training step: averaged over the ranks without holding up the next step,
//! checked, and written down by the main rank.

use std::time::Instant;

use burn_dist::{Buffer, Handle, ProcessGroup, ReduceOp};

use crate::error::TrainError;
use crate::metrics::{Metric, MetricsFile};

/// One step, as this rank saw it.
#[derive(Clone, Copy, Debug)]
pub struct Step {
    /// Steps of the run so far, this one included.
    pub number: u64,
    /// Epoch, from 1.
    pub epoch: u64,
    /// Mean loss over this rank's samples.
    pub loss: f64,
    /// Learning rate.
    pub lr: f64,
}

/// A step whose loss is on its way around the ranks.
struct Pending {
    step: Step,
    ended: Instant,
    mean: Handle,
}

/// Where the numbers of a run are gathered.
pub struct Recorder {
    group: ProcessGroup,
    metrics: Option<MetricsFile>,
    /// Steps from one line to the next.
    every: u64,
    global_batch: usize,
    pending: Option<Pending>,
    /// End of the step of the last line, or begin of the epoch.
    last_line: Instant,
    steps_since_line: u64,
    epoch_loss: f64,
    epoch_steps: u64,
    latest: Option<f64>,
    /// Whether any rank wished for something at the last step that is known.
    wished: bool,
}

impl Recorder {
    /// A recorder that writes to `metrics` every `every` steps; ranks other than the main one
    /// have nothing to write to.
    pub fn new(
        group: &ProcessGroup,
        metrics: Option<MetricsFile>,
        every: u64,
        global_batch: usize,
    ) -> Self {
        Self {
            group: group.clone(),
            metrics,
            every: every.max(1),
            global_batch,
            pending: None,
            last_line: Instant::now(),
            steps_since_line: 0,
            epoch_loss: 0.0,
            epoch_steps: 0,
            latest: None,
            wished: false,
        }
    }

    /// Starts the clock and the mean of an epoch, of which `steps` steps with this sum of losses
    /// were done before.
    pub fn start_epoch(&mut self, steps: u64, loss: f64) {
        self.last_line = Instant::now();
        self.steps_since_line = 0;
        self.epoch_loss = loss;
        self.epoch_steps = steps;
    }

    /// Takes the numbers of a step that just ended. Its loss is averaged over the ranks while the
    /// next step is computed; whether any rank `wishes` travels with it.
    ///
    /// # Errors
    /// If the loss of the step before is not finite, cannot be written, or a rank failed.
    pub fn record(&mut self, step: Step, wishes: bool) -> Result<(), TrainError> {
        self.settle()?;
        let loss = Buffer::from_slice(&[step.loss, f64::from(u8::from(wishes))]);
        self.pending = Some(Pending {
            step,
            ended: Instant::now(),
            mean: self.group.start_all_reduce(loss, ReduceOp::Mean),
        });
        Ok(())
    }

    /// Ends an epoch; gives the mean loss of its steps.
    ///
    /// # Errors
    /// As [`Recorder::record`], of the last step.
    pub fn end_epoch(&mut self) -> Result<f64, TrainError> {
        self.settle()?;
        Ok(self.epoch_loss / self.epoch_steps.max(1) as f64)
    }

    /// Waits for the numbers of the last step; gives the sum of the losses of the epoch so far.
    ///
    /// # Errors
    /// As [`Recorder::record`], of the last step.
    pub fn flush(&mut self) -> Result<f64, TrainError> {
        self.settle()?;
        Ok(self.epoch_loss)
    }

    /// Length of the file of metrics; 0 on ranks that have none.
    ///
    /// # Errors
    /// If the system does not say.
    pub fn metrics_bytes(&self) -> Result<u64, TrainError> {
        self.metrics.as_ref().map_or(Ok(0), MetricsFile::length)
    }

    /// Whether any rank wished for something at the last step of which the numbers are known. All
    /// ranks get the same answer at the same step, and only once.
    pub fn take_wish(&mut self) -> bool {
        std::mem::take(&mut self.wished)
    }

    /// Loss of the last step that is known, averaged over the ranks.
    pub fn latest(&self) -> Option<f64> {
        self.latest
    }

    /// Writes a line.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn write(&mut self, metric: &Metric) -> Result<(), TrainError> {
        match &mut self.metrics {
            Some(file) => file.write(metric),
            None => Ok(()),
        }
    }

    fn settle(&mut self) -> Result<(), TrainError> {
        let Some(Pending { step, ended, mean }) = self.pending.take() else {
            return Ok(());
        };
        let mean = mean.wait()?;
        let mean = mean.as_slice::<f64>().map_err(burn_dist::Error::from)?;
        let loss = mean.first().copied().unwrap_or(f64::NAN);
        self.wished = mean.get(1).is_some_and(|share| *share > 0.0);
        // All ranks have the same mean, so all of them stop here.
        if !loss.is_finite() {
            return Err(TrainError::Diverged {
                what: format!("the training loss of step {}", step.number),
                value: loss,
            });
        }
        self.latest = Some(loss);
        self.epoch_loss += loss;
        self.epoch_steps += 1;
        self.steps_since_line += 1;
        if !step.number.is_multiple_of(self.every) {
            return Ok(());
        }
        let images = self.steps_since_line as f64 * self.global_batch as f64;
        let seconds = ended.duration_since(self.last_line).as_secs_f64();
        self.last_line = ended;
        self.steps_since_line = 0;
        self.write(&Metric::Train {
            step: step.number,
            epoch: step.epoch,
            loss,
            lr: step.lr,
            // A clock too coarse for a step would make this infinite, which JSON cannot say.
            images_per_second: images / seconds.max(1e-9),
        })
    }
}
