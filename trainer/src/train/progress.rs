//! Progress of a run: beside model and optimizer, the state that an exact resume needs.

use burn_dist::checkpoint::Manifest;
use serde::{Deserialize, Serialize};

use crate::config::metric::Better;
use crate::config::{Batching, Config, Seen};
use crate::error::TrainError;
use crate::run::same_config::NOT_SET;
use crate::task::{Difference, Evaluation, Facts, Task, name_of_evaluated};
use crate::train::changes;
use crate::train::early_stopping::Watch;

/// Identity of the learning task of a run. Two runs with different ones cannot continue each other.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Identity {
    /// Name of the task, unless it is image classification.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Name of the data set.
    pub data: String,
    /// Items for training.
    pub train_samples: usize,
    /// Items for evaluation.
    #[serde(rename = "test_samples")]
    pub eval_samples: usize,
    /// Items per step over all ranks.
    pub global_batch: usize,
    /// Seed of the run.
    pub seed: u64,
    /// `data.validation`, and the data that training then evaluates on. Missing in checkpoints of
    /// earlier versions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub validation: Option<[String; 2]>,
    /// Properties that the task adds. A checkpoint lacks the properties of later versions.
    #[serde(flatten)]
    pub facts: Facts,
    /// Words for the items.
    #[serde(skip)]
    pub items: &'static str,
    /// Name of the items for evaluation: `val`, `test` or `train`.
    #[serde(skip)]
    pub evaluated: &'static str,
    /// Micro-batch size and number of ranks of this run, if the global batch grows with them.
    #[serde(skip)]
    pub portions: Option<[usize; 2]>,
}

impl Identity {
    /// The identity of a run with this configuration.
    pub(crate) fn of<T: Task>(config: &Config, batching: Batching, task: &T) -> Self {
        let grows = config.train.batch_size.is_none() && config.train.micro_batch_size.is_some();
        let items = task.items();
        Self {
            name: (!config.task.is_usual()).then(|| T::NAME.to_owned()),
            data: config.data.kind.name().to_owned(),
            train_samples: items.train,
            eval_samples: items.eval,
            global_batch: batching.global,
            seed: config.train.seed,
            validation: Some(validation(config)),
            facts: task.facts(),
            items: T::WORDS.items,
            evaluated: name_of_evaluated(task, config),
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

    /// The first difference between this identity, of task `T`, and that of a checkpoint. Skips
    /// values that one of them does not know.
    fn difference<T: Task>(&self, stored: &Self) -> Result<Option<Difference>, TrainError> {
        let name = |identity: &Self| identity.name.clone().unwrap_or_else(|| USUAL.to_owned());
        let number = |number: usize| number.to_string();
        let training = format!("number of training {}", self.items);
        let evaluated = format!("number of {} {}", self.evaluated, self.items);
        let both = self.validation.as_ref().zip(stored.validation.as_ref());
        let validation = |index: usize| {
            let both = both.map(|(own, stored)| [own, stored].map(|texts| texts[index].clone()));
            both.unwrap_or_default()
        };
        let ([share, stored_share], [set, stored_set]) = (validation(0), validation(1));
        let first = [
            ("task.name", "task.name", name(self), name(stored)),
            (
                "data.name",
                "data.name",
                self.data.clone(),
                stored.data.clone(),
            ),
            ("data.validation", "data.validation", share, stored_share),
            ("data.evaluate", "data.evaluate", set, stored_set),
            (
                training.as_str(),
                "data",
                number(self.train_samples),
                number(stored.train_samples),
            ),
            (
                evaluated.as_str(),
                "data",
                number(self.eval_samples),
                number(stored.eval_samples),
            ),
        ];
        if let Some(difference) = differing(first) {
            return Ok(Some(difference));
        }
        let (batch, seed) = ("train.batch_size", "train.seed");
        let last = [
            (
                batch,
                batch,
                number(self.global_batch),
                number(stored.global_batch),
            ),
            (seed, seed, self.seed.to_string(), stored.seed.to_string()),
        ];
        match differing(last) {
            Some(difference) => Ok(Some(difference)),
            None => T::compare(&self.facts, &stored.facts),
        }
    }
}

/// `data.validation`, and the data that training then evaluates on.
fn validation(config: &Config) -> [String; 2] {
    let data = &config.data;
    let not_set = || NOT_SET.to_owned();
    let share = data.validation.map(|share| share.to_string());
    let set = data.validation.map(|_| data.evaluated().name().to_owned());
    [share, set].map(|text| text.unwrap_or_else(not_set))
}

/// Name of the task that checkpoints do not name.
const USUAL: &str = "classification";

/// The first of these properties, as name, key, value now and value in a checkpoint, that differs.
fn differing<const N: usize>(properties: [(&str, &str, String, String); N]) -> Option<Difference> {
    let mut properties = properties.into_iter();
    let (name, key, own, stored) = properties.find(|(_, _, own, stored)| own != stored)?;
    Some(Difference {
        name: name.to_owned(),
        key: key.to_owned(),
        own,
        stored,
    })
}

/// Earlier bests to remember. The best checkpoint is lost only if all of these fail to be written
/// in a row.
const MOST_BESTS: usize = 32;

/// The best evaluation of a run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Best {
    /// The metric that decides: `loss` or one of the task's.
    pub by: String,
    /// Its epoch, from 1.
    pub epoch: u64,
    /// Steps before it.
    pub step: u64,
    /// All its metrics.
    pub evaluation: Evaluation,
}

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
    /// Sum of the losses of the epoch's steps, each times its weight, if it has one.
    pub epoch_loss: f64,
    /// Number of losses in the sum. Skipped steps whose loss is NaN do not count. Missing in
    /// checkpoints of earlier versions.
    #[serde(default)]
    pub epoch_losses: Option<u64>,
    /// Sum of the weights of the losses, if they have some.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub epoch_weight: Option<f64>,
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
    pub best_by: Option<String>,
    /// All metrics of the best evaluation so far, also in a run that keeps no best checkpoint.
    /// Missing in checkpoints of earlier versions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub best_evaluation: Option<Best>,
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
            epoch_weight: None,
            metrics_bytes: 0,
            train_seconds: 0.0,
            evaluation: None,
            best: None,
            earlier_bests: Vec::new(),
            best_by: None,
            best_evaluation: None,
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
        self.best_evaluation = start.best_evaluation;
        self.watch = start.watch;
    }

    /// Leaves the current epoch, for a trial, which begins its own.
    pub fn leave_epoch(&mut self) {
        self.evaluated = true;
        self.steps_of_epoch = u64::MAX;
    }

    /// Notes the evaluation after the last step, if its metric `by` is the best so far.
    pub fn see(&mut self, by: &str, better: Better, evaluation: &Evaluation) {
        let value = evaluation.metric(by).filter(|value| value.is_finite());
        let best = self.best_evaluation.as_ref().filter(|best| best.by == by);
        // Checkpoints of earlier versions know the value of the best, but not its other metrics.
        let is_same = self.best_by.as_deref() == Some(by);
        let earlier = self.best.filter(|_| is_same).map(|(_, value)| value);
        let before = best.and_then(|best| best.evaluation.metric(by)).or(earlier);
        let is_better =
            |value: f64| before.is_none_or(|before| better.is_better(value, before, 0.0));
        if value.is_some_and(is_better) {
            self.best_evaluation = Some(Best {
                by: by.to_owned(),
                epoch: self.epoch,
                step: self.steps,
                evaluation: evaluation.clone(),
            });
        }
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
    pub task: Identity,
    /// The resolved configuration, as TOML. Missing in checkpoints of earlier versions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub config: Option<String>,
    /// The path of products of bf16 on CPUs, if the run has some. Missing in checkpoints of earlier
    /// versions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bf16_path: Option<String>,
}

impl Meta {
    /// The path of products of bf16 of the run that wrote a checkpoint, if known.
    pub fn bf16_path_of(manifest: &Manifest) -> Option<&str> {
        manifest.meta.get("bf16_path")?.as_str()
    }

    /// The configuration in a checkpoint, if it contains one.
    pub fn config_of(manifest: &Manifest) -> Option<String> {
        Some(manifest.meta.get("config")?.as_str()?.to_owned())
    }

    /// The global batch of the run that wrote a checkpoint, if known.
    pub fn global_batch_of(manifest: &Manifest) -> Option<usize> {
        let global = manifest.meta.get("task")?.get("global_batch")?.as_u64()?;
        usize::try_from(global).ok().filter(|global| *global > 0)
    }

    /// Reads the metadata of a checkpoint of the same task; `now` is the configuration of that
    /// task.
    ///
    /// # Errors
    /// Fails if the checkpoint belongs to another task or another program.
    pub fn of<T: Task>(
        manifest: &Manifest,
        own: &Identity,
        now: Option<&Config>,
    ) -> Result<Self, TrainError> {
        let meta: Self = serde_json::from_value(manifest.meta.clone()).map_err(|error| {
            TrainError::Resume(format!("another program wrote the checkpoint: {error}"))
        })?;
        if let Some(difference) = own.difference::<T>(&meta.task)? {
            let then = (meta.task.global_batch, manifest.world_size);
            let Difference {
                name,
                key,
                own: value,
                stored,
            } = difference;
            let cure = match key.as_str() {
                "train.batch_size" => own.cure_of_batch(then),
                "data" => now
                    .and_then(|now| changes::of_data(manifest, now))
                    .unwrap_or_else(|| "set data back".to_owned()),
                _ => format!("set {key} back"),
            };
            return Err(TrainError::Resume(format!(
                "the checkpoint was written with {name} = {stored}, but this run has {value}; {cure}, \
                 or start a new run"
            )));
        }
        Ok(meta)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::class_names::ClassNames;
    use crate::task::classification::check_classes;

    /// Any classifier has these facts.
    type Classes = crate::task::classification::Classification<models::Cnn>;

    fn facts(names: &[String], std: [f32; 2]) -> Facts {
        let normalization = [vec![0.5f32, 0.1], std.to_vec()];
        let facts = serde_json::json!({
            "classes": names.len(),
            "class_names": ClassNames::of(names),
            "normalization": normalization,
        });
        facts.as_object().cloned().unwrap()
    }

    fn identity() -> Identity {
        Identity {
            name: None,
            data: "mnist".into(),
            train_samples: 10,
            eval_samples: 5,
            global_batch: 4,
            seed: 1,
            validation: None,
            facts: facts(&names(["cat", "dog"]), [0.25, 0.2]),
            items: "images",
            evaluated: "test",
            portions: None,
        }
    }

    fn names(names: [&str; 2]) -> Vec<String> {
        names.map(str::to_owned).to_vec()
    }

    #[test]
    fn tasks_that_differ_are_told_apart() {
        let (own, mut batch, mut std, mut other) = (identity(), identity(), identity(), identity());
        let difference = |stored: &Identity| {
            let found = own.difference::<Classes>(stored).unwrap();
            found.map(|found| [found.name, found.key, found.own, found.stored])
        };
        assert_eq!(difference(&own), None);
        batch.global_batch = 8;
        let expected = ["train.batch_size", "train.batch_size", "4", "8"];
        assert_eq!(difference(&batch).unwrap(), expected);
        std.facts = facts(&names(["cat", "dog"]), [0.25, 0.3]);
        let expected = ["data.std", "data.std", "[0.25, 0.2]", "[0.25, 0.3]"];
        assert_eq!(difference(&std).unwrap(), expected);
        other.name = Some("language".to_owned());
        let expected = ["task.name", "task.name", "classification", "language"];
        assert_eq!(difference(&other).unwrap(), expected);
    }

    #[test]
    fn another_share_for_validation_is_told_before_the_numbers() {
        let share = |share: &str, set: &str| Identity {
            validation: Some([share.to_owned(), set.to_owned()]),
            train_samples: 10 * share.len(),
            ..identity()
        };
        let own = share("0.1", "val");
        let difference = |stored: &Identity| {
            let found = own.difference::<Classes>(stored).unwrap();
            found.map(|found| [found.key, found.own, found.stored])
        };
        let found = difference(&share("0.15", "val")).unwrap();
        assert_eq!(found, ["data.validation", "0.1", "0.15"]);
        let found = difference(&share("0.1", "test")).unwrap();
        assert_eq!(found, ["data.evaluate", "val", "test"]);
        // A checkpoint of an earlier version does not know its share.
        let old = Identity {
            validation: None,
            ..own.clone()
        };
        assert_eq!(difference(&old), None);
    }

    /// The form of earlier versions, which checkpoints hold.
    #[test]
    fn an_identity_is_one_object() {
        let value = serde_json::to_value(identity()).unwrap();
        let expected = serde_json::json!({
            "data": "mnist", "train_samples": 10, "test_samples": 5, "classes": 2,
            "class_names": ClassNames::of(&names(["cat", "dog"])),
            "normalization": [[0.5f32, 0.1f32], [0.25f32, 0.2f32]], "global_batch": 4, "seed": 1,
        });
        assert_eq!(value, expected);
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
            task: identity(),
            config: None,
            bf16_path: None,
        };
        let mut meta = serde_json::to_value(&meta).unwrap();
        let others = names(["dog", "cat"]);
        let renamed = Identity {
            facts: facts(&others, [0.25, 0.2]),
            ..identity()
        };
        let new = manifest(meta.clone());
        Meta::of::<Classes>(&new, &identity(), None).unwrap();
        check_classes(&new, &names(["cat", "dog"])).unwrap();
        for error in [
            Meta::of::<Classes>(&new, &renamed, None).unwrap_err(),
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
        let read = Meta::of::<Classes>(&old, &renamed, None).unwrap();
        assert_eq!(read.task.facts.keys().collect::<Vec<_>>(), ["classes"]);
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
    fn the_best_evaluation_is_kept_with_its_epoch() {
        let mut progress = Progress::start();
        let best = |progress: &Progress| {
            let best = progress.best_evaluation.as_ref();
            best.map(|best| (best.epoch, best.step))
        };
        for (epoch, accuracy) in [(1, 0.5), (2, 0.7), (3, 0.7), (4, f64::NAN), (5, 0.6)] {
            (progress.epoch, progress.steps) = (epoch, 10 * epoch);
            let evaluation = Evaluation::new(accuracy, 1, [("accuracy", accuracy)]);
            progress.see("accuracy", Better::Higher, &evaluation);
        }
        assert_eq!(best(&progress), Some((2, 20)));
        // Another metric starts anew.
        progress.see("loss", Better::Lower, &Evaluation::new(3.0, 1, []));
        assert_eq!(best(&progress), Some((5, 50)));
        // A checkpoint of an earlier version has a better one.
        let mut old = Progress {
            best: Some((7, 0.9)),
            best_by: Some("accuracy".to_owned()),
            ..Progress::start()
        };
        let worse = Evaluation::new(0.1, 1, [("accuracy", 0.8)]);
        old.see("accuracy", Better::Higher, &worse);
        assert_eq!(best(&old), None);
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
