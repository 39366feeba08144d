//! Reads `metrics.jsonl` for a report, line by line into bounded memory.
//!
//! The file may have any length, and damage by a crash or an editor.

use std::collections::BTreeMap;
use std::io::{self, BufRead, Read};
use std::sync::LazyLock;

use serde::Deserialize;
use serde_json::Value;

use super::positions::Positions;
use super::series::{Series, is_drawable};
use crate::run::metrics::Changed;

/// Maximum length of a line. One with the numbers of ten thousand ranks is shorter.
const LINE: u64 = 1 << 20;
/// Maximum number of ranks.
const RANKS: usize = 1 << 16;
/// Maximum number of changed keys.
const CHANGES: usize = 1000;
/// Maximum number of generations of ranks.
const WORLDS: usize = 1000;
/// Maximum number of metrics of an evaluation.
const MEASURED: usize = 32;
/// Numbers of an evaluation that are no metrics.
const OTHERS: [&str; 2] = ["samples", "seconds"];
/// Resolution of accuracies: this many steps up to 1.
const STEPS_OF_ACCURACY: f64 = 10_000.0;

/// Tolerates missing and unknown fields, because other versions may have written the file.
#[derive(Debug, Deserialize)]
#[serde(tag = "kind", rename_all = "lowercase")]
enum Line {
    Train(TrainLine),
    Eval(EvalLine),
    Ranks(RanksLine),
    Resume(ResumeLine),
    World(World),
    #[serde(other)]
    Unknown,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct TrainLine {
    step: f64,
    epoch: f64,
    loss: Option<f64>,
    lr: Option<f64>,
    elapsed: Option<f64>,
    time: Option<Times>,
    memory_mib: Option<f64>,
    tflops: Option<f64>,
    share_of_peak: Option<f64>,
    gradient_norm: Option<f64>,
    loss_scale: Option<f64>,
    skipped_steps: Option<f64>,
    /// Contains the throughput.
    #[serde(flatten)]
    others: BTreeMap<String, Value>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Times {
    data: f64,
    forward: f64,
    backward: f64,
    wait: f64,
    update: f64,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct EvalLine {
    set: Option<String>,
    step: f64,
    epoch: f64,
    loss: Option<f64>,
    elapsed: Option<f64>,
    skipped_steps: Option<f64>,
    /// Contains the task's metrics.
    #[serde(flatten)]
    others: BTreeMap<String, Value>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct ResumeLine {
    step: f64,
    changes: Vec<Changed>,
}

/// A generation of ranks, under `trainer launch`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct World {
    /// Its first step.
    pub step: f64,
    /// Number of ranks.
    pub ranks: f64,
    /// Number of nodes.
    pub nodes: f64,
    /// Micro-batches per rank and step.
    pub accumulate: f64,
    /// Why it began.
    pub reason: String,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct RanksLine {
    compute: Vec<f64>,
    wait: Vec<f64>,
}

/// Data of an evaluation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum EvaluatedData {
    /// A share of the training data, or a folder for validation.
    Val,
    /// Test data. Earlier versions did not write the name.
    #[default]
    Test,
    /// The few training items that the model should overfit.
    Train,
}

impl EvaluatedData {
    /// The data of this name.
    pub fn named(name: &str) -> Self {
        match name {
            "val" => Self::Val,
            "train" => Self::Train,
            _ => Self::Test,
        }
    }

    /// The name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Val => "val",
            Self::Test => "test",
            Self::Train => "train",
        }
    }

    /// Title of a number about the data, such as `loss`.
    pub fn title(self, what: &str) -> String {
        match self {
            Self::Val | Self::Test => format!("{} {what}", self.name()),
            Self::Train => format!("train {what} in evaluation"),
        }
    }
}

/// The curves of a metric.
#[derive(Clone, Debug, Default)]
pub struct Measured {
    /// Over the steps.
    pub by_step: Series,
    /// Over the seconds of training.
    pub by_time: Series,
}

/// The curves of a run, over its steps.
#[derive(Clone, Debug, Default)]
pub struct Metrics {
    /// Training loss.
    pub loss: Series,
    /// Learning rate.
    pub lr: Series,
    /// Images, tokens or other units per second in training.
    pub throughput: Series,
    /// The unit of the throughput; empty without one.
    pub unit: String,
    /// Seconds of a step: data, forward, backward, wait, update.
    pub times: [Series; 5],
    /// Resident memory in MiB.
    pub memory: Series,
    /// Arithmetic in TFLOP/s.
    pub tflops: Series,
    /// Fraction of the devices' peak.
    pub share_of_peak: Series,
    /// Gradient norm.
    pub gradient_norm: Series,
    /// Loss scale, in half precision.
    pub loss_scale: Series,
    /// Skipped steps, as last reported.
    pub skipped_steps: Option<f64>,
    /// Data of the last evaluation, if it says.
    pub evaluated: Option<EvaluatedData>,
    /// Loss of the evaluations.
    pub eval_loss: Series,
    /// The task's metrics in the evaluations by name, in the order of the first evaluation.
    pub measured: Vec<(String, Measured)>,
    /// First training time at which each accuracy was reached. Keys are ten thousandths, values
    /// seconds.
    reached: BTreeMap<u32, f64>,
    /// Seconds of own work of each rank, over all epochs.
    pub compute: Vec<f64>,
    /// Seconds of waiting of each rank, over all epochs.
    pub wait: Vec<f64>,
    /// Keys changed at a resume, with the first step that they apply to.
    pub changes: Vec<(f64, Changed)>,
    /// Generations of ranks.
    pub worlds: Vec<World>,
    /// Epochs and time of the steps.
    pub positions: Positions,
    /// Last step.
    pub step: f64,
    /// Last epoch.
    pub epoch: f64,
    /// Seconds of training.
    pub elapsed: Option<f64>,
    /// Number of lines that cannot be read.
    pub broken: u64,
    /// Number of the first of these lines, from 1.
    pub first_broken: u64,
}

impl Metrics {
    /// Reads a file, and counts lines that cannot be read.
    ///
    /// # Errors
    /// Fails if the system cannot read the file.
    pub fn read(mut input: impl BufRead) -> io::Result<Self> {
        let mut metrics = Self::default();
        let mut line = Vec::new();
        let mut number = 0u64;
        loop {
            line.clear();
            if input.by_ref().take(LINE).read_until(b'\n', &mut line)? == 0 {
                return Ok(metrics);
            }
            number += 1;
            let cut = line.len() as u64 == LINE && line.last() != Some(&b'\n');
            if cut {
                input.skip_until(b'\n')?;
            }
            if !cut && line.trim_ascii().is_empty() {
                continue;
            }
            match serde_json::from_slice(&line) {
                Ok(line) if !cut => metrics.add(line),
                _ => {
                    metrics.broken += 1;
                    if metrics.first_broken == 0 {
                        metrics.first_broken = number;
                    }
                }
            }
        }
    }

    /// Whether there is nothing to report.
    pub fn is_empty(&self) -> bool {
        let measured = self.measured.iter().map(|(_, measured)| &measured.by_step);
        let others = [&self.loss, &self.throughput, &self.eval_loss];
        let mut all = others.into_iter().chain(measured);
        all.all(Series::is_empty)
    }

    /// The curves of a metric; empty ones if it was not measured.
    pub fn measured(&self, name: &str) -> &Measured {
        static NOTHING: LazyLock<Measured> = LazyLock::new(Measured::default);
        let found = self.measured.iter().find(|(own, _)| own == name);
        found.map_or(&NOTHING, |(_, measured)| measured)
    }

    /// Seconds of training until this accuracy was first reached, if it was.
    pub fn seconds_to(&self, ten_thousandths: u32) -> Option<f64> {
        let later = self.reached.range(ten_thousandths..);
        later.map(|(_, seconds)| *seconds).reduce(f64::min)
    }

    /// The best accuracy with a known time, in ten thousandths.
    pub fn best_reached(&self) -> Option<u32> {
        self.reached.keys().next_back().copied()
    }

    fn add(&mut self, line: Line) {
        match line {
            Line::Train(line) => self.add_train(&line),
            Line::Eval(line) => self.add_eval(&line),
            Line::Ranks(line) => {
                add_ranks(&mut self.compute, &line.compute);
                add_ranks(&mut self.wait, &line.wait);
            }
            Line::Resume(line) => {
                let room = CHANGES.saturating_sub(self.changes.len());
                let changes = line.changes.into_iter().take(room);
                self.changes
                    .extend(changes.map(|change| (line.step, change)));
            }
            Line::World(world) => {
                if self.worlds.len() < WORLDS {
                    self.worlds.push(world);
                }
            }
            Line::Unknown => {}
        }
    }

    fn at(&mut self, step: f64, epoch: f64, elapsed: Option<f64>) {
        let last = |value: f64, new: f64| {
            if is_drawable(new) {
                value.max(new)
            } else {
                value
            }
        };
        self.positions.see(step, epoch, elapsed);
        self.step = last(self.step, step);
        self.epoch = last(self.epoch, epoch);
        if let Some(seconds) = elapsed.filter(|seconds| is_drawable(*seconds)) {
            self.elapsed = Some(self.elapsed.unwrap_or_default().max(seconds));
        }
    }

    fn add_train(&mut self, line: &TrainLine) {
        let step = line.step;
        self.at(step, line.epoch, line.elapsed);
        self.loss.push_some(step, line.loss);
        self.lr.push_some(step, line.lr);
        let rate = |(key, value): (&String, &Value)| {
            let unit = key.strip_suffix("_per_second")?;
            Some((unit.to_owned(), value.as_f64()?))
        };
        if let Some((unit, rate)) = line.others.iter().find_map(rate) {
            self.throughput.push(step, rate);
            self.unit = unit;
        }
        self.memory.push_some(step, line.memory_mib);
        self.tflops.push_some(step, line.tflops);
        self.share_of_peak.push_some(step, line.share_of_peak);
        self.gradient_norm.push_some(step, line.gradient_norm);
        self.loss_scale.push_some(step, line.loss_scale);
        self.skipped_steps = line.skipped_steps.or(self.skipped_steps);
        if let Some(t) = &line.time {
            let times = [t.data, t.forward, t.backward, t.wait, t.update];
            // All or none, so that the stacked areas have the same positions.
            if times.into_iter().all(is_drawable) {
                for (series, seconds) in self.times.iter_mut().zip(times) {
                    series.push(step, seconds);
                }
            }
        }
    }

    fn add_eval(&mut self, line: &EvalLine) {
        let step = line.step;
        self.at(step, line.epoch, line.elapsed);
        let set = line.set.as_deref().map(EvaluatedData::named);
        self.evaluated = set.or(self.evaluated);
        self.eval_loss.push_some(step, line.loss);
        self.skipped_steps = line.skipped_steps.or(self.skipped_steps);
        let seconds = line.elapsed.filter(|seconds| is_drawable(*seconds));
        for (name, value) in &line.others {
            if let Some(value) = value.as_f64().filter(|_| !OTHERS.contains(&name.as_str())) {
                self.add_measured(name, step, seconds, value);
            }
        }
        let Some(seconds) = seconds else {
            return;
        };
        if let Some(accuracy) = line.others.get("accuracy").and_then(Value::as_f64) {
            // The small number compensates the rounding of the product; the cast saturates.
            let level = (accuracy.min(1.0) * STEPS_OF_ACCURACY + 1e-6) as u32;
            let first = self.reached.entry(level).or_insert(seconds);
            *first = first.min(seconds);
        }
    }
}

impl Metrics {
    fn add_measured(&mut self, name: &str, step: f64, seconds: Option<f64>, value: f64) {
        let index = match self.measured.iter().position(|(own, _)| own == name) {
            Some(index) => index,
            None if self.measured.len() >= MEASURED => return,
            None => {
                self.measured.push((name.to_owned(), Measured::default()));
                self.measured.len() - 1
            }
        };
        let (_, measured) = &mut self.measured[index];
        measured.by_step.push(step, value);
        if let Some(seconds) = seconds {
            measured.by_time.push(seconds, value);
        }
    }
}

fn add_ranks(sums: &mut Vec<f64>, seconds: &[f64]) {
    let seconds = seconds.get(..RANKS).unwrap_or(seconds);
    if sums.len() < seconds.len() {
        sums.resize(seconds.len(), 0.0);
    }
    for (sum, seconds) in sums.iter_mut().zip(seconds) {
        if is_drawable(*seconds) {
            *sum += seconds;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn broken_lines_are_counted_and_the_others_read() {
        let long = format!(
            "{{\"kind\":\"train\",\"step\":9,\"x\":\"{}\"}}",
            "x".repeat(2 << 20)
        );
        let text = format!(
            "{}\n\n{}\nnonsense\n{long}\n{}\n{}\n{}",
            r#"{"kind":"train","step":1,"loss":2.5,"elapsed":0.5,"new_field":[1]}"#,
            r#"{"kind":"train","step":2,"loss":null,"lr":0.1}"#,
            r#"{"kind":"eval","epoch":1,"step":2,"loss":1e999}"#,
            r#"{"kind":"eval","epoch":1,"step":2,"accuracy":0.97,"elapsed":3.0}"#,
            r#"{"kind":"train","step":3,"lo"#,
        );
        let metrics = Metrics::read(text.as_bytes()).unwrap();
        assert_eq!((metrics.broken, metrics.first_broken), (4, 4));
        assert_eq!(metrics.loss.extremes(), [(1.0, 2.5)]);
        assert_eq!(metrics.lr.extremes(), [(2.0, 0.1)]);
        assert_eq!(metrics.measured("accuracy").by_step.last(), Some(0.97));
        assert_eq!(metrics.step, 2.0);
        assert_eq!(metrics.elapsed, Some(3.0));
    }

    #[test]
    fn times_to_accuracies_are_the_first() {
        let mut text = String::new();
        for (accuracy, elapsed) in [(0.5, 1.0), (0.97, 2.0), (0.96, 3.0), (0.97, 4.0)] {
            text +=
                &format!("{{\"kind\":\"eval\",\"accuracy\":{accuracy},\"elapsed\":{elapsed}}}\n");
        }
        let metrics = Metrics::read(text.as_bytes()).unwrap();
        let seconds = [5000, 5001, 9600, 9700, 9701].map(|level| metrics.seconds_to(level));
        assert_eq!(seconds, [Some(1.0), Some(2.0), Some(2.0), Some(2.0), None]);
        assert_eq!(metrics.best_reached(), Some(9700));
    }

    #[test]
    fn ranks_are_summed_over_epochs() {
        let line =
            r#"{"kind":"ranks","epoch":1,"compute":[1.0,2.0],"wait":[0.5,0.0],"memory_mib":[1]}"#;
        let text = format!("{line}\n{line}\n");
        let metrics = Metrics::read(text.as_bytes()).unwrap();
        assert_eq!(
            (metrics.compute, metrics.wait),
            (vec![2.0, 4.0], vec![1.0, 0.0])
        );
    }

    proptest! {
        #[test]
        fn no_input_is_fatal(bytes in prop::collection::vec(any::<u8>(), 0..2000)) {
            let lines = bytes.split(|byte| *byte == b'\n');
            let lines = lines.filter(|line| !line.trim_ascii().is_empty()).count();
            let metrics = Metrics::read(bytes.as_slice()).unwrap();
            prop_assert_eq!(metrics.broken, lines as u64);
        }
    }
}
