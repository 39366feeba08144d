//! `metrics.jsonl`: the metrics of a run for programs, one JSON object per line.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::error::TrainError;
use crate::run::evaluation::Metrics;
use crate::run::throughput::Throughput;
use crate::system::output::complain;

/// File in the run folder.
pub const FILE: &str = "metrics.jsonl";

/// Block size of the search for the last line's end, in bytes.
const CHUNK: u64 = 1 << 16;

/// One line. Numbers have as many digits as an exact round trip needs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "lowercase")]
pub enum Metric {
    /// One optimizer step.
    Train(TrainLine),
    /// One evaluation.
    Eval(EvalLine),
    /// Each rank's part of an epoch's work.
    Ranks(RanksLine),
    /// Changes of a resumed run.
    Resume(ResumeLine),
    /// The ranks of a generation, under `trainer launch`.
    World(WorldLine),
}

/// Metrics of one optimizer step. Rates and times are means since the line before.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct TrainLine {
    /// Steps so far, including this one.
    pub step: u64,
    /// Epoch, from 1.
    pub epoch: u64,
    /// Mean loss over the step's global batch.
    pub loss: f64,
    /// Learning rate of the step.
    pub lr: f64,
    /// Throughput over all ranks, such as `images_per_second`.
    #[serde(flatten)]
    pub throughput: Throughput,
    /// Seconds of training in the whole run so far, without evaluations.
    pub elapsed: f64,
    /// Rank 0's time of a step by phase.
    pub time: StepTimes,
    /// Resident memory of rank 0 in MiB.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_mib: Option<f64>,
    /// Forward and backward of all ranks together, in TFLOP/s.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tflops: Option<f64>,
    /// Fraction of the devices' peak, if known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub share_of_peak: Option<f64>,
    /// Gradient norm before clipping, if computed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gradient_norm: Option<f64>,
    /// Gradient norms before clipping by parameter path, if requested. Without NaN and infinity,
    /// which half precision can produce.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gradient_norms: Option<BTreeMap<String, f64>>,
    /// Loss scale of the step, in half precision.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub loss_scale: Option<f64>,
    /// Steps skipped so far because their gradients overflowed, in half precision.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub skipped_steps: Option<u64>,
}

/// Seconds of a step by phase.
///
/// On an asynchronous device, time shows in the first phase that waits for it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct StepTimes {
    /// Waiting for the data loader.
    pub data: f64,
    /// Forward and loss.
    pub forward: f64,
    /// Backward, which also starts to send gradients.
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

    /// The mean, if these are sums over `steps` steps.
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

    /// Seconds of this rank's own work, without waiting for others.
    pub fn own(&self) -> f64 {
        self.data + self.forward + self.backward + self.update
    }
}

/// Metrics of one evaluation.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct EvalLine {
    /// Epoch before the evaluation, from 1.
    pub epoch: u64,
    /// Steps so far.
    pub step: u64,
    /// Name of the evaluated data: `val`, `test`, or `train` if the model should overfit. Missing
    /// in runs of earlier versions.
    #[serde(default)]
    pub set: String,
    /// Mean loss.
    pub loss: f64,
    /// The task's metrics by name, such as `accuracy`.
    #[serde(flatten)]
    pub metrics: Metrics,
    /// Evaluated samples over all ranks.
    pub samples: u64,
    /// Seconds of training in the whole run so far, without evaluations.
    pub elapsed: f64,
    /// Seconds of the evaluation.
    pub seconds: f64,
    /// Steps skipped so far because their gradients overflowed, in half precision.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub skipped_steps: Option<u64>,
}

/// Each rank's part of an epoch's work, with one entry per rank.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct RanksLine {
    /// Epoch, from 1.
    pub epoch: u64,
    /// Steps so far.
    pub step: u64,
    /// Seconds of own work.
    pub compute: Vec<f64>,
    /// Seconds of waiting for other ranks.
    pub wait: Vec<f64>,
    /// Resident memory in MiB.
    pub memory_mib: Vec<f64>,
    /// GPU memory allocated by the process, in MiB. Empty if ranks compute on the CPU.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub device_mib: Vec<f64>,
}

/// Changes of a resumed run.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ResumeLine {
    /// The first step with the changes.
    pub step: u64,
    /// Changed keys.
    pub changes: Vec<Changed>,
    /// Learning rate of the step before, if known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lr_before: Option<f64>,
    /// Learning rate of this step without the changes, if known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lr_unchanged: Option<f64>,
    /// Learning rate of this step.
    pub lr: f64,
}

/// The ranks and nodes of a generation, under `trainer launch`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct WorldLine {
    /// The first step of the generation.
    pub step: u64,
    /// Number of the generation, from 1.
    pub generation: u32,
    /// Number of ranks.
    pub ranks: usize,
    /// Number of nodes.
    pub nodes: usize,
    /// Micro-batches per rank and step.
    pub accumulate: usize,
    /// Why it began, in words.
    pub reason: String,
}

/// A configuration key with a new value, or a new number of ranks.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Changed {
    /// The key, such as `optimizer.lr`, or `ranks` for their number.
    pub key: String,
    /// Its value before, as TOML; `not set` if it had none.
    pub before: String,
    /// Its value now.
    pub after: String,
}

/// Writes [`Metric`]s, one per line.
///
/// Systems write page by page, so a reader may find half a line at the end, as may a run after a
/// kill. A resumed run removes it.
#[derive(Debug)]
pub struct MetricsFile {
    path: PathBuf,
    file: File,
    /// Bytes of complete lines.
    length: u64,
    /// Whether half a line follows that could not be removed.
    torn: bool,
    /// Whether the last write failed.
    failing: bool,
    /// The last step among the dropped lines.
    dropped_step: Option<u64>,
}

impl MetricsFile {
    /// Opens `metrics.jsonl` to append after its first `length` bytes, and drops the rest.
    ///
    /// A node crash may leave a shorter file. It is then continued after its last complete line,
    /// with a warning.
    ///
    /// # Errors
    /// Fails if the file cannot be opened.
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
            let dropped = last_step(&file, kept, found)?;
            file.set_len(kept)?;
            Ok((file, kept, dropped))
        };
        let (file, kept, dropped_step) = open().map_err(TrainError::run_dir(&path))?;
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
            dropped_step,
        })
    }

    /// The last step among the lines that [`open`](Self::open) dropped, if there was one.
    pub fn dropped_step(&self) -> Option<u64> {
        self.dropped_step
    }

    /// Syncs the file and returns its length in bytes.
    ///
    /// A checkpoint that survives a node crash relies on it.
    pub fn synced_length(&mut self) -> u64 {
        let synced = self.file.sync_data();
        // A successful sync would not prove that a line can be written.
        if synced.is_err() {
            self.note(synced);
        }
        self.length
    }

    /// Appends one line: a [`Metric`], or a line of the caller's own. If that fails, it skips the
    /// line and warns once: lost metrics must not end a run.
    pub fn write(&mut self, line: &impl Serialize) {
        let written = serde_json::to_vec(line)
            .map_err(io::Error::from)
            .and_then(|mut line| {
                line.push(b'\n');
                self.append(&line)
            });
        self.note(written);
    }

    /// Appends a whole line or nothing.
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

    /// Warns at the first of a series of failures.
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

/// End of the last complete line within the first `length` bytes of a file.
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

/// The last step among the lines between two positions. The end may be half a line.
fn last_step(file: &File, from: u64, to: u64) -> io::Result<Option<u64>> {
    #[derive(Deserialize)]
    struct AnyLine {
        step: u64,
    }
    let begin = from.max(to.saturating_sub(CHUNK));
    let mut end = vec![0; to.saturating_sub(begin) as usize];
    file.read_exact_at(&mut end, begin)?;
    let lines = end.split(|byte| *byte == b'\n').rev();
    let step = |line: &[u8]| serde_json::from_slice::<AnyLine>(line).ok();
    Ok(lines.filter_map(step).map(|line| line.step).next())
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
        let train = |step| {
            Metric::Train(TrainLine {
                step,
                ..TrainLine::default()
            })
        };
        assert_eq!(file.dropped_step(), None);
        file.write(&train(8));
        file.write(&train(9));
        file.file
            .write_all(b"{\"kind\":\"train\",\"step\":10")
            .unwrap();
        let mut file = MetricsFile::open(folder.path(), length).unwrap();
        assert_eq!(file.dropped_step(), Some(9));
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
        // One line longer than a block of the search, and no line end.
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
        // Half of the line is in the file, as after a full disk.
        file.file = whole;
        file.file.write_all(b"{\"kind\":").unwrap();
        assert!(file.torn);
        file.write(&evaluation(3));
        assert!(!file.failing && !file.torn);
        assert_eq!(read(folder.path()), [evaluation(1), evaluation(3)]);
    }
}
