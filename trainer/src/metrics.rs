//! `metrics.jsonl`: the numbers of a run for programs, one JSON object per line.

use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::error::TrainError;

/// File in the run folder.
pub const FILE: &str = "metrics.jsonl";

/// One line. Numbers are written with as many digits as it takes to read them back exactly.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "lowercase")]
pub enum Metric {
    /// One optimizer step.
    Train(TrainLine),
    /// One evaluation.
    Eval(EvalLine),
    /// How the ranks shared an epoch's work.
    Ranks(RanksLine),
}

/// The numbers of one optimizer step. Rates and times are means since the line before.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct TrainLine {
    /// Steps so far, this one included.
    pub step: u64,
    /// Epoch, from 1.
    pub epoch: u64,
    /// Mean loss over the step's global batch.
    pub loss: f64,
    /// Learning rate of the step.
    pub lr: f64,
    /// Training images per second over all ranks.
    pub images_per_second: f64,
    /// Seconds of training in the whole run so far, evaluations excluded.
    pub elapsed: f64,
    /// Where rank 0 spent the time of a step.
    pub time: StepTimes,
    /// Resident memory of rank 0 in MiB.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_mib: Option<f64>,
    /// Arithmetic of forward and backward, all ranks together, in 10¹² operations per second.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tflops: Option<f64>,
    /// That as a share of what the devices could do at best, where this is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub share_of_peak: Option<f64>,
    /// Norm of the gradient before clipping, where it is computed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gradient_norm: Option<f64>,
    /// Factor of the loss that the step was computed with, in half precision.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub loss_scale: Option<f64>,
    /// Steps so far that were skipped because their gradients overflowed, in half precision.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub skipped_steps: Option<u64>,
}

/// Seconds that a step spends on each of its parts. Where a device computes asynchronously, its
/// time shows in the first part that waits for it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct StepTimes {
    /// Waiting for the loader.
    pub data: f64,
    /// Forward, with the loss.
    pub forward: f64,
    /// Backward, in which gradients begin to travel.
    pub backward: f64,
    /// Waiting for gradients of other ranks after backward.
    pub wait: f64,
    /// The optimizer.
    pub update: f64,
}

impl StepTimes {
    /// Adds the times of another step.
    pub fn add(&mut self, other: &Self) {
        self.data += other.data;
        self.forward += other.forward;
        self.backward += other.backward;
        self.wait += other.wait;
        self.update += other.update;
    }

    /// The mean, if these are the sums over `steps` steps.
    pub fn mean(&self, steps: u64) -> Self {
        let share = |sum: f64| sum / steps.max(1) as f64;
        Self {
            data: share(self.data),
            forward: share(self.forward),
            backward: share(self.backward),
            wait: share(self.wait),
            update: share(self.update),
        }
    }

    /// Seconds of this rank's own work: all but the waiting for others.
    pub fn own(&self) -> f64 {
        self.data + self.forward + self.backward + self.update
    }
}

/// The numbers of one evaluation.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct EvalLine {
    /// Epoch, from 1, after which the evaluation took place.
    pub epoch: u64,
    /// Steps so far.
    pub step: u64,
    /// Mean loss over all samples.
    pub loss: f64,
    /// Share of samples whose class was predicted.
    pub accuracy: f64,
    /// Share of samples whose class was among the five likeliest, where there are more classes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub top5: Option<f64>,
    /// Samples that were evaluated, over all ranks.
    pub samples: u64,
    /// Seconds of training in the whole run so far, evaluations excluded.
    pub elapsed: f64,
    /// Seconds that the evaluation took.
    pub seconds: f64,
}

/// How the ranks shared an epoch's work; an entry for each rank.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct RanksLine {
    /// Epoch, from 1.
    pub epoch: u64,
    /// Steps so far.
    pub step: u64,
    /// Seconds of own work.
    pub compute: Vec<f64>,
    /// Seconds of waiting for the others.
    pub wait: Vec<f64>,
    /// Resident memory in MiB.
    pub memory_mib: Vec<f64>,
}

/// Writes [`Metric`]s, a line each. Systems write page by page, so who reads meanwhile, or reads what a killed
/// process left, may find half of the last one; a run that is continued removes it.
#[derive(Debug)]
pub struct MetricsFile {
    path: PathBuf,
    file: File,
}

impl MetricsFile {
    /// Opens `metrics.jsonl` in `folder` for appending behind its first `length` bytes; what comes
    /// after them goes.
    ///
    /// # Errors
    /// If it cannot be opened, or is shorter.
    pub fn open(folder: &Path, length: u64) -> Result<Self, TrainError> {
        let path = folder.join(FILE);
        let open = || {
            let file = File::options().append(true).create(true).open(&path)?;
            if file.metadata()?.len() < length {
                let reason =
                    format!("it has fewer than the {length} bytes it had at the checkpoint");
                return Err(io::Error::new(io::ErrorKind::UnexpectedEof, reason));
            }
            file.set_len(length)?;
            Ok(file)
        };
        match open() {
            Ok(file) => Ok(Self { path, file }),
            Err(error) => Err(TrainError::RunDir { path, error }),
        }
    }

    /// Its length in bytes.
    ///
    /// # Errors
    /// If the system does not say.
    pub fn length(&self) -> Result<u64, TrainError> {
        let metadata = self.file.metadata();
        metadata
            .map(|metadata| metadata.len())
            .map_err(|error| TrainError::RunDir {
                path: self.path.clone(),
                error,
            })
    }

    /// Appends one line.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn write(&mut self, metric: &Metric) -> Result<(), TrainError> {
        let written = serde_json::to_vec(metric)
            .map_err(io::Error::from)
            .and_then(|mut line| {
                line.push(b'\n');
                self.file.write_all(&line)
            });
        written.map_err(|error| TrainError::RunDir {
            path: self.path.clone(),
            error,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_read_back_exactly() {
        let folder = tempfile::tempdir().unwrap();
        let losses = [f64::from(0.1f32), 1.0 / 3.0, 5e-324, 1e300, 2.0];
        let mut file = MetricsFile::open(folder.path(), 0).unwrap();
        for (step, loss) in (1..).zip(losses) {
            let line = TrainLine {
                step,
                loss,
                ..TrainLine::default()
            };
            file.write(&Metric::Train(line)).unwrap();
        }
        let text = std::fs::read_to_string(folder.path().join(FILE)).unwrap();
        let read: Vec<serde_json::Value> = text
            .lines()
            .map(|line| serde_json::from_str(line).unwrap())
            .collect();
        assert_eq!(read.len(), losses.len());
        for (value, loss) in read.iter().zip(losses) {
            assert_eq!(value["loss"].as_f64(), Some(loss));
            assert_eq!(value["kind"], "train");
        }
    }

    #[test]
    fn an_existing_file_is_continued_where_it_was() {
        let folder = tempfile::tempdir().unwrap();
        let metric = |epoch| {
            Metric::Eval(EvalLine {
                epoch,
                ..EvalLine::default()
            })
        };
        let mut file = MetricsFile::open(folder.path(), 0).unwrap();
        file.write(&metric(1)).unwrap();
        let length = file.length().unwrap();
        file.write(&metric(2)).unwrap();
        let mut file = MetricsFile::open(folder.path(), length).unwrap();
        file.write(&metric(3)).unwrap();
        let text = std::fs::read_to_string(folder.path().join(FILE)).unwrap();
        let read: Vec<Metric> = text
            .lines()
            .map(|line| serde_json::from_str(line).unwrap())
            .collect();
        assert_eq!(read, [metric(1), metric(3)]);
        assert!(MetricsFile::open(folder.path(), 1000).is_err());
    }
}
