//! `metrics.jsonl`: the numbers of a run for programs, one JSON object per line.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::error::TrainError;
use crate::system::output::complain;

/// File in the run folder.
pub const FILE: &str = "metrics.jsonl";

/// Bytes that are searched at a time for the end of a line.
const CHUNK: u64 = 1 << 16;

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
    /// What was changed when the run was continued.
    Resume(ResumeLine),
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
    /// Norms of the gradients of single parameters before clipping, by their paths, where they are
    /// asked for; without those that are no number, in half precision.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gradient_norms: Option<BTreeMap<String, f64>>,
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
    /// Steps so far that were skipped because their gradients overflowed, in half precision.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub skipped_steps: Option<u64>,
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
    /// Memory that this process has taken from the driver of its GPU, in MiB; nothing where ranks
    /// compute on the processor.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub device_mib: Vec<f64>,
}

/// What was changed when the run was continued.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ResumeLine {
    /// The first step with the changes.
    pub step: u64,
    /// What has changed.
    pub changes: Vec<Changed>,
    /// Learning rate of the step before, where it is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lr_before: Option<f64>,
    /// Learning rate that this step would have had without the changes, where it is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lr_unchanged: Option<f64>,
    /// Learning rate of this step.
    pub lr: f64,
}

/// A key of the configuration with another value, or the number of ranks.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Changed {
    /// The key, such as `optimizer.lr`; `ranks` for their number.
    pub key: String,
    /// Its value before, as TOML; `not set` if it had none.
    pub before: String,
    /// Its value now.
    pub after: String,
}

/// Writes [`Metric`]s, a line each. Systems write page by page, so who reads meanwhile, or reads
/// what a killed process left, may find half of the last one; a run that is continued removes it.
#[derive(Debug)]
pub struct MetricsFile {
    path: PathBuf,
    file: File,
    /// Bytes of whole lines.
    length: u64,
    /// Whether half a line stands behind them that could not be taken away.
    torn: bool,
    /// Whether the last line was not written.
    failing: bool,
}

impl MetricsFile {
    /// Opens `metrics.jsonl` in `folder` for appending behind its first `length` bytes; what comes
    /// after them goes. If it is shorter, as a node that crashed may have left it, it is continued
    /// behind its last whole line, with a warning.
    ///
    /// # Errors
    /// If it cannot be opened.
    pub fn open(folder: &Path, length: u64) -> Result<Self, TrainError> {
        let path = folder.join(FILE);
        let open = || {
            let mut options = File::options();
            let file = options.read(true).append(true).create(true).open(&path)?;
            let found = file.metadata()?.len();
            let kept = match found < length {
                true => end_of_lines(&file, found)?,
                false => length,
            };
            file.set_len(kept)?;
            Ok((file, kept))
        };
        let (file, kept) = open().map_err(TrainError::run_dir(&path))?;
        if kept < length {
            complain(&format!(
                "warning: {} had {length} bytes at the checkpoint but has {kept} bytes of complete \
                 lines. Metrics are missing; the run continues",
                path.display()
            ));
        }
        Ok(Self {
            path,
            file,
            length: kept,
            torn: false,
            failing: false,
        })
    }

    /// Its length in bytes, which are on disk if the disk takes them: a checkpoint that outlives a
    /// crash of the node relies on it.
    pub fn synced_length(&mut self) -> u64 {
        let synced = self.file.sync_data();
        // That it could would not mean that a line can be written.
        if synced.is_err() {
            self.note(synced);
        }
        self.length
    }

    /// Appends one line. One that cannot be written is left out, with a warning if the one before
    /// was not: the run is worth more than its numbers.
    pub fn write(&mut self, metric: &Metric) {
        let written = serde_json::to_vec(metric)
            .map_err(io::Error::from)
            .and_then(|mut line| {
                line.push(b'\n');
                self.append(&line)
            });
        self.note(written);
    }

    /// Appends a line or nothing.
    fn append(&mut self, line: &[u8]) -> io::Result<()> {
        if self.torn {
            self.file.set_len(self.length)?;
            self.torn = false;
        }
        self.file.write_all(line).inspect_err(|_| {
            self.torn = self.file.set_len(self.length).is_err();
        })?;
        self.length += line.len() as u64;
        Ok(())
    }

    /// Says once of a series of failures that there is one.
    fn note(&mut self, outcome: io::Result<()>) {
        if let (Err(error), false) = (&outcome, self.failing) {
            complain(&format!(
                "warning: cannot write metrics to {}; the run continues: {error}",
                self.path.display()
            ));
        }
        self.failing = outcome.is_err();
    }
}

/// Where the last whole line ends among the first `length` bytes of a file.
fn end_of_lines(file: &File, length: u64) -> io::Result<u64> {
    let mut end = length;
    while end > 0 {
        let begin = end.saturating_sub(CHUNK);
        let mut chunk = vec![0; (end - begin) as usize];
        file.read_exact_at(&mut chunk, begin)?;
        if let Some(at) = chunk.iter().rposition(|byte| *byte == b'\n') {
            return Ok(begin + at as u64 + 1);
        }
        end = begin;
    }
    Ok(0)
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
            file.write(&Metric::Train(line));
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

    fn evaluation(epoch: u64) -> Metric {
        Metric::Eval(EvalLine {
            epoch,
            ..EvalLine::default()
        })
    }

    fn read(folder: &Path) -> Vec<Metric> {
        let text = std::fs::read_to_string(folder.join(FILE)).unwrap();
        let lines = text.lines();
        lines
            .map(|line| serde_json::from_str(line).unwrap())
            .collect()
    }

    #[test]
    fn an_existing_file_is_continued_where_it_was() {
        let folder = tempfile::tempdir().unwrap();
        let mut file = MetricsFile::open(folder.path(), 0).unwrap();
        file.write(&evaluation(1));
        let length = file.synced_length();
        file.write(&evaluation(2));
        let mut file = MetricsFile::open(folder.path(), length).unwrap();
        file.write(&evaluation(3));
        assert_eq!(read(folder.path()), [evaluation(1), evaluation(3)]);
    }

    #[test]
    fn a_file_that_lost_its_end_is_continued_behind_its_last_whole_line() {
        let folder = tempfile::tempdir().unwrap();
        let mut file = MetricsFile::open(folder.path(), 0).unwrap();
        file.write(&evaluation(1));
        let one = file.synced_length();
        file.write(&evaluation(2));
        let two = file.synced_length();
        let path = folder.path().join(FILE);
        File::options()
            .write(true)
            .open(&path)
            .and_then(|file| file.set_len(two - 3))
            .unwrap();
        let mut file = MetricsFile::open(folder.path(), two).unwrap();
        assert_eq!(file.synced_length(), one);
        file.write(&evaluation(3));
        assert_eq!(read(folder.path()), [evaluation(1), evaluation(3)]);
        // One line longer than what is searched at a time, and nothing at all.
        std::fs::write(&path, vec![b'x'; 3 << 16]).unwrap();
        let mut file = MetricsFile::open(folder.path(), 4 << 16).unwrap();
        assert_eq!(file.synced_length(), 0);
        std::fs::remove_file(&path).unwrap();
        MetricsFile::open(folder.path(), 4 << 16).unwrap();
    }

    #[test]
    fn a_line_that_cannot_be_written_is_left_out() {
        let folder = tempfile::tempdir().unwrap();
        let mut file = MetricsFile::open(folder.path(), 0).unwrap();
        file.write(&evaluation(1));
        let length = file.length;
        let path = folder.path().join(FILE);
        let whole = std::mem::replace(&mut file.file, File::open(&path).unwrap());
        file.write(&evaluation(2));
        assert!(file.failing);
        assert_eq!(file.synced_length(), length);
        // Half of it stands there, as a disk that is full leaves it.
        file.file = whole;
        file.file.write_all(b"{\"kind\":").unwrap();
        assert!(file.torn);
        file.write(&evaluation(3));
        assert!(!file.failing && !file.torn);
        assert_eq!(read(folder.path()), [evaluation(1), evaluation(3)]);
    }
}
