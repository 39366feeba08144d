//! `[task]`: the tasks.
//!
//! Each task is one file (keys and metrics) and one line in the list below. The module `task` has
//! its loss and its evaluation.

mod classification;
mod language;
mod own;
mod segmentation;

use toml::de::DeTable;

use super::error::Fault;
use super::metric::{self, Measure};
use super::named::{Alternative, Named, named_section};
use super::section::{Section, keys};
use super::suggest::suggest;
use super::{Config, DataConfig, ModelConfig};

named_section! {
    /// `[task]`: the task to learn. `name` defaults to `classification`. Each task has its own data
    /// sets and models.
    "task" TaskConfig(TaskKeys) TaskKind: AnyTask, Some("classification");
    "classification" Classification(classification::ClassificationConfig),
    "language" Language(language::LanguageConfig),
    "segmentation" Segmentation(segmentation::SegmentationConfig),
    "own" Own(own::OwnTaskConfig),
}

keys! {
    /// The keys of `[task]` that go with every `name`.
    TaskKeys {}
}

/// The interface of a task in `[task]`.
pub trait AnyTask {
    /// Metrics of an evaluation beside the loss. `None` if only the program knows them.
    fn measures(&self) -> Option<&'static [Measure]>;

    /// Name of the metric that decides which evaluation is best, unless configured.
    fn monitor(&self) -> &'static str;
}

/// Name of the task that data sets and models have by default.
pub const USUAL: &str = "classification";

impl Default for TaskConfig {
    fn default() -> Self {
        Self {
            kind: TaskKind::Classification(ClassificationConfig::default()),
            keys: TaskKeys::default(),
        }
    }
}

impl TaskConfig {
    /// Whether this is the default task, which a configuration need not name.
    pub fn is_usual(&self) -> bool {
        *self == Self::default()
    }
}

/// Keys with the name of a metric, and their values.
fn monitors(config: &Config) -> Vec<(&'static str, &str)> {
    let names = [
        ("checkpoint.monitor", config.checkpoint.monitor.as_deref()),
        (
            "early_stopping.monitor",
            config.early_stopping.monitor.as_deref(),
        ),
        ("schedule.monitor", config.schedule.kind.monitor()),
    ];
    let given = names.into_iter();
    given.filter_map(|(key, name)| Some((key, name?))).collect()
}

/// Checks that the task has the metrics that are watched.
///
/// # Errors
/// The first unknown name, with those of the task.
pub(crate) fn check_monitors(config: &Config, measures: &[Measure]) -> Result<(), Fault> {
    let task = config.task.kind.name();
    let unknown = |name: &str| metric::find(measures, name).is_none();
    let names: Vec<&str> = std::iter::once(&metric::LOSS)
        .chain(measures)
        .map(|measure| measure.name.as_ref())
        .collect();
    for (key, name) in monitors(config) {
        if unknown(name) {
            let text = format!("`{key}` = \"{name}\" is no metric of the task `{task}`");
            let help = suggest(name, &names, "its metrics");
            return Err(Fault::in_key(key, text).help(help));
        }
    }
    if config.early_stopping.target_accuracy.is_some() && unknown("accuracy") {
        let key = "early_stopping.target_accuracy";
        let text = format!("`{key}` needs the metric `accuracy`, which the task `{task}` lacks");
        let help = format!(
            "use early_stopping.patience; its metrics: {}",
            names.join(", ")
        );
        return Err(Fault::in_key(key, text).help(help));
    }
    Ok(())
}

fn other_task(key: &str, name: &str, task: &str, valid: &[&str]) -> Fault {
    let text = format!("`{key}` = \"{name}\" does not go with the task `{task}`");
    let help = format!("names for this task: {}", valid.join(", "));
    Fault::in_key(key, text).help(help)
}

/// The names of a section that are `such`, with their usual keys.
fn names<N: Named>(such: impl Fn(&N::Kind) -> bool) -> Vec<&'static str> {
    let is_such = |choice: &&Alternative<N::Kind>| {
        let faults = &mut Vec::new();
        let usual = Section::take(&mut DeTable::new(), N::SECTION, faults);
        such(&(choice.read)(usual, faults))
    };
    let all = N::ALTERNATIVES.iter().filter(is_such);
    all.map(|choice| choice.name).collect()
}

/// Checks that data, model and watched metrics belong to the task.
pub(super) fn check(config: &Config) -> Result<(), Fault> {
    let kind = &config.task.kind;
    if let Some(measures) = kind.measures() {
        check_monitors(config, measures)?;
    }
    if matches!(kind, TaskKind::Own(_)) {
        return Ok(());
    }
    let task = kind.name();
    let (data, model) = (&config.data.kind, &config.model.kind);
    let goes_with = |of: &'static str| of == task;
    if !goes_with(data.task()) {
        let valid = names::<DataConfig>(|data| goes_with(data.task()));
        return Err(other_task("data.name", data.name(), task, &valid));
    }
    if !goes_with(model.task()) {
        let valid = names::<ModelConfig>(|model| goes_with(model.task()));
        return Err(other_task("model.name", model.name(), task, &valid));
    }
    let is_usual = matches!(kind, TaskKind::Classification(_));
    let useless = [
        ("train.label_smoothing", config.train.label_smoothing != 0.0),
        ("train.loss", config.train.loss != Default::default()),
        (
            "train.class_weights",
            config.train.class_weights != Default::default(),
        ),
        ("data.balance", config.data.balance != 0.0),
        ("data.augment", config.data.augment != Default::default()),
        ("data.on_device", config.data.on_device == Some(true)),
    ];
    match useless.into_iter().find(|(_, given)| *given && !is_usual) {
        Some((key, _)) => {
            let text = format!("`{key}` has no effect with the task `{task}`");
            Err(Fault::in_key(key, text).help("remove it"))
        }
        None => Ok(()),
    }
}
