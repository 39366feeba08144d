//! Progress of a run: beside model and optimizer, the state that an exact resume needs.

use burn_dist::checkpoint::Manifest;
use datasets::Normalization;
use serde::{Deserialize, Serialize};

use crate::config::{Batching, Config, MonitorName, Seen};
use crate::data::Splits;
use crate::data::class_names::ClassNames;
use crate::error::TrainError;
use crate::eval::evaluation::Evaluation;
use crate::train::changes;
use crate::train::early_stopping::Watch;

/// The learning task of a run. Two runs with different tasks cannot continue each other.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Task {
    /// Name of the data set.
    pub data: String,
    /// Training images.
    pub train_samples: usize,
    /// Test images.
    pub test_samples: usize,
    /// Classes.
    pub classes: usize,
    /// Names of the classes. Missing in checkpoints of earlier versions.
    #[serde(default)]
    pub class_names: Option<ClassNames>,
    /// Means and deviations of the image normalization. Missing in checkpoints of earlier versions.
    #[serde(default)]
    pub normalization: Option<[Vec<f32>; 2]>,
    /// Images per step over all ranks.
    pub global_batch: usize,
    /// Seed of the run.
    pub seed: u64,
    /// Micro-batch size and number of ranks of this run, if the global batch grows with them.
    #[serde(skip)]
    pub portions: Option<[usize; 2]>,
}

/// A name for messages, and the key or section of the configuration that sets it.
type Said = (&'static str, &'static str);

impl Task {
    /// The task of a run with this configuration.
    pub(crate) fn of(config: &Config, batching: Batching, splits: &Splits) -> Self {
        let class_names = splits.train.class_names();
        let Normalization { mean, std } = splits.train.normalization();
        let grows = config.train.batch_size.is_none() && config.train.micro_batch_size.is_some();
        Self {
            data: config.data.kind.name().to_owned(),
            train_samples: splits.train.len(),
            test_samples: splits.test.len(),
            classes: class_names.len(),
            class_names: Some(ClassNames::of(class_names)),
            normalization: Some([mean, std]),
            global_batch: batching.global,
            seed: config.train.seed,
            portions: grows.then(|| [batching.micro, batching.ranks()]),
        }
    }

    /// Advice to get the global batch of a checkpoint that `ranks` ranks wrote.
    fn cure_of_batch(&self, (batch, ranks): (usize, usize)) -> String {
        let usual = format!("set train.batch_size = {batch}");
        let Some([micro, ranks_now]) = self.portions else {
            return usual;
        };
        let once = micro.saturating_mul(ranks_now);
        if ranks == ranks_now || once == 0 || !batch.is_multiple_of(once) {
            return usual;
        }
        format!(
            "set train.accumulate = {} (the world size is {ranks_now} instead of {ranks})",
            batch / once
        )
    }

    /// The first difference between two tasks: its name, its key and both values. Skips values that
    /// one of them does not know.
    fn difference(&self, other: &Self) -> Option<(Said, String, String)> {
        let mut pairs = self.said().into_iter().zip(other.said());
        pairs.find_map(|((said, own), (_, other))| {
            let both = own.zip(other).filter(|(own, other)| own != other);
            both.map(|(own, other)| (said, own, other))
        })
    }

    fn said(&self) -> [(Said, Option<String>); 8] {
        let normalization = |index: usize| {
            let numbers = &self.normalization.as_ref()?[index];
            Some(format!("{numbers:?}"))
        };
        let number = |number: usize| Some(number.to_string());
        [
            (("data.name", "data.name"), Some(self.data.clone())),
            (
                ("number of training images", "data"),
                number(self.train_samples),
            ),
            (("number of test images", "data"), number(self.test_samples)),
            (("number of classes", "data"), number(self.classes)),
            (
                ("train.batch_size", "train.batch_size"),
                number(self.global_batch),
            ),
            (("train.seed", "train.seed"), Some(self.seed.to_string())),
            (("data.mean", "data.mean"), normalization(0)),
            (("data.std", "data.std"), normalization(1)),
        ]
    }
}

/// Earlier bests to remember. The best checkpoint is lost only if all of these fail to be written
/// in a row.
const MOST_BESTS: usize = 32;

/// Progress of a run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Progress {
    /// Optimizer steps so far.
    pub steps: u64,
    /// Micro-batches per rank so far. Missing in checkpoints of earlier versions.
    #[serde(default)]
    pub batches: Option<u64>,
    /// The current or last epoch, from 1; 0 before the first.
    pub epoch: u64,
    /// Steps of that epoch.
    pub steps_of_epoch: u64,
    /// Whether the evaluation after that epoch is done.
    pub evaluated: bool,
    /// Sum of the losses of the epoch's steps.
    pub epoch_loss: f64,
    /// Number of losses in the sum. Skipped steps whose loss is NaN do not count. Missing in
    /// checkpoints of earlier versions.
    #[serde(default)]
    pub epoch_losses: Option<u64>,
    /// Length of `metrics.jsonl` in bytes.
    pub metrics_bytes: u64,
    /// Seconds spent in training steps.
    pub train_seconds: f64,
    /// The last evaluation.
    pub evaluation: Option<Evaluation>,
    /// The best evaluation so far, as its step and value.
    pub best: Option<(u64, f64)>,
    /// Steps of the earlier bests, the last first. Their checkpoints stand in if that of the best
    /// could not be written.
    #[serde(default)]
    pub earlier_bests: Vec<u64>,
    /// The metric that decides the best. Missing in checkpoints of earlier versions.
    #[serde(default)]
    pub best_by: Option<MonitorName>,
    /// State of early stopping.
    pub watch: Watch,
    /// State of a schedule that follows the evaluations.
    #[serde(default, skip_serializing_if = "Seen::is_nothing")]
    pub seen: Seen,
}

impl Progress {
    /// Progress before the first step.
    pub fn start() -> Self {
        Self {
            steps: 0,
            batches: Some(0),
            epoch: 0,
            steps_of_epoch: 0,
            evaluated: true,
            epoch_loss: 0.0,
            epoch_losses: Some(0),
            metrics_bytes: 0,
            train_seconds: 0.0,
            evaluation: None,
            best: None,
            earlier_bests: Vec::new(),
            best_by: None,
            watch: Watch::default(),
            seen: Seen::default(),
        }
    }

    /// Removes an earlier run's measurements and file positions, for a new run from its state.
    pub fn forget_run(&mut self) {
        let start = Self::start();
        self.metrics_bytes = start.metrics_bytes;
        self.best = start.best;
        self.earlier_bests = start.earlier_bests;
        self.best_by = start.best_by;
        self.watch = start.watch;
    }

    /// Leaves the current epoch, for a trial, which begins its own.
    pub fn leave_epoch(&mut self) {
        self.evaluated = true;
        self.steps_of_epoch = u64::MAX;
    }

    /// Marks the evaluation after the last step as the best.
    pub fn set_best(&mut self, value: f64) {
        if let Some((before, _)) = self.best.replace((self.steps, value)) {
            self.earlier_bests.insert(0, before);
            self.earlier_bests.truncate(MOST_BESTS);
        }
    }

    /// Steps of the best evaluations, the best first.
    pub fn best_steps(&self) -> impl Iterator<Item = u64> {
        let best = self.best.map(|(step, _)| step);
        best.into_iter().chain(self.earlier_bests.iter().copied())
    }
}

/// The trainer's metadata in a checkpoint.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Meta {
    /// Progress of the run.
    pub progress: Progress,
    /// Learning task of the run.
    pub task: Task,
    /// The resolved configuration, as TOML. Missing in checkpoints of earlier versions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub config: Option<String>,
}

impl Meta {
    /// The configuration in a checkpoint, if it contains one.
    pub fn config_of(manifest: &Manifest) -> Option<String> {
        Some(manifest.meta.get("config")?.as_str()?.to_owned())
    }

    /// Reads the metadata of a checkpoint of the same task; `now` is the configuration of that
    /// task.
    ///
    /// # Errors
    /// Fails if the checkpoint belongs to another task or another program.
    pub fn of(manifest: &Manifest, task: &Task, now: Option<&Config>) -> Result<Self, TrainError> {
        let meta: Self = serde_json::from_value(manifest.meta.clone()).map_err(|error| {
            TrainError::Resume(format!("another program wrote the checkpoint: {error}"))
        })?;
        if let Some(((what, key), own, other)) = task.difference(&meta.task) {
            let then = (meta.task.global_batch, manifest.world_size);
            let cure = match key {
                "train.batch_size" => task.cure_of_batch(then),
                "data" => now
                    .and_then(|now| changes::of_data(manifest, now))
                    .unwrap_or_else(|| "set data back".to_owned()),
                _ => format!("set {key} back"),
            };
            return Err(TrainError::Resume(format!(
                "the checkpoint was written with {what} = {other}, but this run has {own}; {cure}, or start a new run"
            )));
        }
        if let (Some(trained), Some(data)) = (&meta.task.class_names, &task.class_names) {
            compare_classes(trained, data)?;
        }
        Ok(meta)
    }
}

/// Checks that the model of `manifest` was trained for these class names, in this order. Passes if
/// the checkpoint does not know its names.
///
/// # Errors
/// [`TrainError::OtherClasses`] with the first class that differs.
pub(crate) fn check_classes(manifest: &Manifest, names: &[String]) -> Result<(), TrainError> {
    let trained = manifest
        .meta
        .get("task")
        .and_then(|task| task.get("class_names"));
    let trained = trained.and_then(|names| ClassNames::deserialize(names).ok());
    let data = || ClassNames::of(names);
    trained.map_or(Ok(()), |trained| compare_classes(&trained, &data()))
}

fn compare_classes(trained: &ClassNames, data: &ClassNames) -> Result<(), TrainError> {
    match trained.difference(data) {
        None => Ok(()),
        Some(difference) => Err(TrainError::OtherClasses(difference)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn task() -> Task {
        Task {
            data: "mnist".into(),
            train_samples: 10,
            test_samples: 5,
            classes: 2,
            class_names: Some(ClassNames::of(&names(["cat", "dog"]))),
            normalization: Some([vec![0.5, 0.1], vec![0.25, 0.2]]),
            global_batch: 4,
            seed: 1,
            portions: None,
        }
    }

    fn names(names: [&str; 2]) -> Vec<String> {
        names.map(str::to_owned).to_vec()
    }

    #[test]
    fn tasks_that_differ_are_told_apart() {
        let (task, mut batch, mut std) = (task(), task(), task());
        assert_eq!(task.difference(&task), None);
        batch.global_batch = 8;
        let key = ("train.batch_size", "train.batch_size");
        let expected = (key, "4".to_owned(), "8".to_owned());
        assert_eq!(task.difference(&batch), Some(expected));
        std.normalization = Some([vec![0.5, 0.1], vec![0.25, 0.3]]);
        let (what, own, found) = task.difference(&std).unwrap();
        assert_eq!(
            (what, own.as_str(), found.as_str()),
            (("data.std", "data.std"), "[0.25, 0.2]", "[0.25, 0.3]")
        );
    }

    fn manifest(meta: serde_json::Value) -> Manifest {
        let manifest = serde_json::json!({
            "version": 1, "step": 7, "world_size": 1, "files": [], "meta": meta,
        });
        serde_json::from_value(manifest).unwrap()
    }

    /// Checkpoints of earlier versions still work: values that they lack are not compared.
    #[test]
    fn what_an_older_checkpoint_does_not_know_is_no_difference() {
        let meta = Meta {
            progress: Progress::start(),
            task: task(),
            config: None,
        };
        let mut meta = serde_json::to_value(&meta).unwrap();
        let task = task();
        let others = names(["dog", "cat"]);
        let renamed = Task {
            class_names: Some(ClassNames::of(&others)),
            ..task.clone()
        };
        let new = manifest(meta.clone());
        Meta::of(&new, &task, None).unwrap();
        check_classes(&new, &names(["cat", "dog"])).unwrap();
        for error in [
            Meta::of(&new, &renamed, None).unwrap_err(),
            check_classes(&new, &others).unwrap_err(),
        ] {
            assert!(matches!(error, TrainError::OtherClasses(_)), "{error}");
        }
        for (part, keys) in [
            ("task", &["class_names", "normalization"][..]),
            ("progress", &["earlier_bests", "best_by"]),
        ] {
            let part = meta[part].as_object_mut().unwrap();
            part.retain(|key, _| !keys.contains(&key.as_str()));
        }
        let old = manifest(meta);
        let read = Meta::of(&old, &renamed, None).unwrap();
        assert_eq!(
            (read.task.class_names, read.task.normalization),
            (None, None)
        );
        check_classes(&old, &others).unwrap();
    }

    #[test]
    fn earlier_bests_are_remembered_but_not_without_end() {
        let mut progress = Progress::start();
        assert_eq!(progress.best_steps().count(), 0);
        for step in 1..=100 {
            progress.steps = step;
            progress.set_best(0.5);
        }
        let steps: Vec<u64> = progress.best_steps().collect();
        assert_eq!(steps, (68..=100).rev().collect::<Vec<u64>>());
    }

    #[test]
    fn progress_reads_back_exactly() {
        let progress = Progress {
            epoch_loss: 1.0 / 3.0,
            train_seconds: 0.1,
            best: Some((7, 0.1 + 0.2)),
            ..Progress::start()
        };
        let text = serde_json::to_string(&progress).unwrap();
        assert_eq!(serde_json::from_str::<Progress>(&text).unwrap(), progress);
    }
}
