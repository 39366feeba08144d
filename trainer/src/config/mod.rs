//! The configuration of a run: parses a TOML file and `--set` arguments into a checked [`Config`].
//!
//! Parsing goes from text to tables with positions (`source`), sections (`section`), typed values
//! (`task`, `model`, `data`, `optimizer`, `schedule`, `sections`) and checks (`validate`,
//! `batching`). Every error knows its place in the text.

mod batching;
mod by_name;
mod data;
mod embedded;
mod error;
mod groups;
pub mod metric;
mod model;
mod named;
mod optimizer;
pub(crate) mod paths;
mod precision;
pub mod reference;
mod relocate;
pub(crate) mod run_name;
mod schedule;
mod section;
mod sections;
mod shard_within;
mod source;
mod task;
mod validate;

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Read;
use std::ops::Range;
use std::path::Path;

use burn_dist::files::open_file;
use schemars::JsonSchema;
use serde::Serialize;
use toml::de::DeTable;

pub use batching::Batching;
pub use data::*;
pub use embedded::{DEFAULT, EMBEDDED, Embedded};
pub use error::ConfigError;
pub use groups::GroupConfig;
pub use model::*;
pub use optimizer::*;
pub use precision::*;
pub use schedule::*;
pub use sections::*;
pub use task::*;

use error::Fault;
use named::Named;
use section::{Section, fields, suggest};
use source::Sources;

/// Everything that decides what a run does, every default filled in.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
pub struct Config {
    /// The task to learn.
    #[serde(skip_serializing_if = "TaskConfig::is_usual")]
    pub task: TaskConfig,
    /// The model to train.
    pub model: ModelConfig,
    /// How a file of weights is taken.
    pub weights: WeightsConfig,
    /// The data set.
    pub data: DataConfig,
    /// How gradients change parameters.
    pub optimizer: OptimizerConfig,
    /// How the learning rate changes over the run.
    pub schedule: ScheduleConfig,
    /// How long, in which portions, and on what.
    pub train: TrainConfig,
    /// How half precision holds small gradients.
    pub loss_scale: LossScaleConfig,
    /// An average of the parameters.
    pub ema: EmaConfig,
    /// How the ranks work together.
    pub parallel: ParallelConfig,
    /// The logs that training writes.
    pub log: LogConfig,
    /// When the state of the run is saved.
    pub checkpoint: CheckpointConfig,
    /// When the run ends before its last epoch.
    pub early_stopping: EarlyStoppingConfig,
}

/// Keys that only some names of a section have, as section, name and keys.
fn variants() -> Vec<(&'static str, &'static str, &'static [&'static str])> {
    fn of<N: Named>() -> impl Iterator<Item = (&'static str, &'static str, &'static [&'static str])>
    {
        let choices = N::ALTERNATIVES.iter();
        choices.map(|choice| (N::SECTION, choice.name, (choice.keys)()))
    }
    of::<TaskConfig>()
        .chain(of::<ModelConfig>())
        .chain(of::<DataConfig>())
        .chain(of::<OptimizerConfig>())
        .chain(of::<ScheduleConfig>())
        .collect()
}

/// Every section with its keys.
fn sections() -> Vec<(&'static str, Vec<&'static str>)> {
    fn named<N: Named>() -> (&'static str, Vec<&'static str>) {
        let mut all = vec!["name"];
        let of_names = N::ALTERNATIVES.iter().flat_map(|choice| (choice.keys)());
        for key in of_names.chain(fields::<N::Keys>()) {
            if !all.contains(key) {
                all.push(key);
            }
        }
        (N::SECTION, all)
    }
    vec![
        named::<TaskConfig>(),
        named::<ModelConfig>(),
        ("weights", fields::<WeightsConfig>().to_vec()),
        named::<DataConfig>(),
        named::<OptimizerConfig>(),
        named::<ScheduleConfig>(),
        ("train", fields::<TrainConfig>().to_vec()),
        ("loss_scale", fields::<LossScaleConfig>().to_vec()),
        ("ema", fields::<EmaConfig>().to_vec()),
        ("parallel", fields::<ParallelConfig>().to_vec()),
        ("log", fields::<LogConfig>().to_vec()),
        ("checkpoint", fields::<CheckpointConfig>().to_vec()),
        ("early_stopping", fields::<EarlyStoppingConfig>().to_vec()),
    ]
}

/// The only section with this key, if unique.
fn section_with_key(key: &str) -> Option<&'static str> {
    let mut with_key = sections()
        .into_iter()
        .filter(|(_, keys)| keys.contains(&key))
        .map(|(section, _)| section);
    match (with_key.next(), with_key.next()) {
        (Some(section), None) => Some(section),
        _ => None,
    }
}

/// A configuration and its source texts.
#[derive(Clone, Debug)]
pub struct Loaded {
    /// The checked configuration.
    pub config: Config,
    /// File name without folder and `.toml`, which names the run.
    pub name: String,
    sources: Sources,
    spans: BTreeMap<String, Range<usize>>,
}

/// The name of a file without its extension.
fn stem(path: &Path) -> String {
    let stem = path.file_stem();
    stem.map(|stem| stem.to_string_lossy().into_owned())
        .unwrap_or_default()
}

impl Loaded {
    /// Loads the file `name`, or the built-in configuration of that name.
    ///
    /// `sets` override keys, each as `section.key=value`.
    ///
    /// # Errors
    /// The first error, with its place.
    pub fn load(name: &str, sets: &[String]) -> Result<Self, ConfigError> {
        let path = paths::expand(name.as_ref())
            .map_err(|reason| ConfigError::new(format!("--config: {reason}"), None))?;
        let path = path.as_path();
        match (File::open(path).and_then(capped), Embedded::find(name)) {
            (Ok(bytes), _) => Self::of_bytes(path, bytes, sets, false),
            (Err(error), Some(embedded)) if error.kind() == std::io::ErrorKind::NotFound => {
                Self::parse(embedded.name, embedded.stem(), embedded.text, sets)
            }
            (Err(error), _) => {
                let names: Vec<&str> = EMBEDDED.iter().map(|config| config.name).collect();
                Err(ConfigError::new(
                    format!("cannot read the configuration {name}: {error}"),
                    Some(suggest(&stem(path), &names, "shipped configurations")),
                ))
            }
        }
    }

    /// Loads the file at `path`, which is no built-in configuration.
    pub(crate) fn load_file(path: &Path, sets: &[String]) -> Result<Self, ConfigError> {
        let bytes = open_file(path).and_then(capped).map_err(|error| {
            let message = format!("cannot read the configuration {}: {error}", path.display());
            ConfigError::new(message, None)
        })?;
        Self::of_bytes(path, bytes, sets, true)
    }

    fn of_bytes(
        path: &Path,
        bytes: Vec<u8>,
        sets: &[String],
        over: bool,
    ) -> Result<Self, ConfigError> {
        let name = path.display().to_string();
        let text = String::from_utf8(bytes).map_err(|_| {
            ConfigError::new(format!("{name} is not a text file (invalid UTF-8)"), None)
        })?;
        Self::parse_as((&name, &stem(path)), &text, sets, over)
    }

    /// Parses a configuration from a text. Errors name the text `file`; `name` names the run.
    ///
    /// # Errors
    /// The first error, with its place.
    pub fn parse(file: &str, name: &str, text: &str, sets: &[String]) -> Result<Self, ConfigError> {
        Self::parse_as((file, name), text, sets, false)
    }

    /// Parses like [`parse`](Self::parse). A run that is `over` gets no errors about keys without
    /// effect.
    fn parse_as(
        (file, name): (&str, &str),
        text: &str,
        sets: &[String],
        over: bool,
    ) -> Result<Self, ConfigError> {
        let sources = Sources::new(file, text, sets);
        let mut spans = BTreeMap::new();
        let config = sources.parse().and_then(|mut root| {
            spans = source::spans(&root);
            let mut config = Config::read(&mut root, &|span| sources.is_set(span), over)?;
            // A key on the command line cannot remove others from the file.
            let is_set = |key: &str| spans.get(key).is_some_and(|span| sources.is_set(span));
            let overridden = |by: &str, key: &str| over || is_set(by) && !is_set(key);
            let schedule = &mut config.schedule;
            schedule.forget_unused(|key| overridden("schedule.name", key));
            config.early_stopping.forget_unused(overridden);
            config.fill_monitors();
            validate::check(&config)?;
            Ok(config)
        });
        match config {
            Ok(config) => Ok(Self {
                config,
                name: name.to_owned(),
                sources,
                spans,
            }),
            Err(fault) => Err(sources.error(fault, &spans)),
        }
    }

    /// Loads the configuration in a run folder, with the run's name.
    pub(crate) fn load_run(folder: &Path, sets: &[String]) -> Result<Self, ConfigError> {
        let name = folder.file_name().unwrap_or_default().to_string_lossy();
        Ok(Self {
            name: run_name::name_of(&name).to_owned(),
            ..Self::load_file(&folder.join(run_name::CONFIG_FILE), sets)?
        })
    }

    /// Loads the configuration `text` of the checkpoint or run at `path`, with the run's name.
    pub(crate) fn of_checkpoint(
        path: &Path,
        text: &str,
        sets: &[String],
    ) -> Result<Self, ConfigError> {
        let name = match path.join(run_name::CHECKPOINTS).is_dir() {
            true => path.file_name().unwrap_or_default().to_string_lossy(),
            false => "resumed".into(),
        };
        let name = run_name::name_of(&name);
        let place = format!("the configuration in {}", path.display());
        Self::parse_as((&place, name), text, sets, true)
    }

    /// Parses the resolved configuration of a run, for example from a checkpoint.
    pub(crate) fn of_run(text: &str) -> Result<Self, ConfigError> {
        Self::parse_as(("config.toml", "config"), text, &[], true)
    }

    /// The batch sizes for `world` ranks.
    ///
    /// # Errors
    /// Fails if the configured batch sizes do not divide.
    pub fn batching(&self, world: usize) -> Result<Batching, ConfigError> {
        Batching::resolve(&self.config.train, world)
            .map_err(|fault| self.sources.error(fault, &self.spans))
    }

    /// Places a late `error` at the first of `keys` that is written in the configuration.
    pub(crate) fn blame(&self, keys: &[&str], error: &impl std::fmt::Display) -> ConfigError {
        let written = keys.iter().find(|key| self.spans.contains_key(**key));
        let fault = Fault {
            key: written.map(|key| (*key).to_owned()),
            ..Fault::new(error.to_string())
        };
        self.sources.error(fault, &self.spans)
    }

    /// The error of a late `fault`, with its place.
    pub(crate) fn locate(&self, fault: Fault) -> ConfigError {
        self.sources.error(fault, &self.spans)
    }

    /// Whether a key is written in the file or set on the command line.
    pub(crate) fn is_written(&self, key: &str) -> bool {
        self.spans.contains_key(key)
    }

    /// The last key of `section` that a `--set` gives.
    pub(crate) fn last_set(&self, section: &str) -> Option<&str> {
        let of_section = |key: &str| {
            key.split_once('.')
                .is_some_and(|(first, _)| first == section)
        };
        let mut found: Vec<_> = self
            .spans
            .iter()
            .filter(|(key, _)| of_section(key))
            .collect();
        found.retain(|(_, span)| self.sources.is_set(span));
        let last = found.into_iter().max_by_key(|(_, span)| span.start);
        last.map(|(key, _)| key.as_str())
    }

    /// Checks that `world` ranks can shard as configured.
    ///
    /// # Errors
    /// Fails if they cannot be divided.
    pub fn check_sharding(&self, world: usize) -> Result<(), ConfigError> {
        shard_within::check_world(&self.config.parallel, world)
            .map_err(|fault| self.sources.error(fault, &self.spans))
    }
}

impl Config {
    fn read(
        root: &mut DeTable<'_>,
        is_set: &dyn Fn(&Range<usize>) -> bool,
        over: bool,
    ) -> Result<Self, Fault> {
        let sections = sections();
        let names: Vec<&str> = sections.iter().map(|(name, _)| *name).collect();
        for key in root.keys() {
            if !names.contains(&key.get_ref().as_ref()) {
                return Err(unknown_section(key.get_ref(), &names).at(key.span()));
            }
        }
        let mut config = Self {
            task: Section::take(root, "task")?.choose(is_set, true)?,
            // First the sections with a default for every key: an error in them is a mistake, while
            // a missing name may only mean an unfinished file.
            weights: Section::take(root, "weights")?.read()?,
            data: Section::take(root, "data")?.choose(is_set, true)?,
            schedule: Section::take(root, "schedule")?.choose(is_set, true)?,
            train: Section::take(root, "train")?.read()?,
            loss_scale: Section::take(root, "loss_scale")?.read()?,
            ema: Section::take(root, "ema")?.read()?,
            parallel: Section::take(root, "parallel")?.read()?,
            log: Section::take(root, "log")?.read()?,
            checkpoint: Section::take(root, "checkpoint")?.read()?,
            early_stopping: Section::take(root, "early_stopping")?.read()?,
            model: Section::take(root, "model")?.choose(is_set, over)?,
            optimizer: Section::take(root, "optimizer")?.choose(is_set, over)?,
        };
        config.model.kind.fill();
        config.expand_paths()?;
        Ok(config)
    }

    /// Names the watched metrics that are not configured.
    fn fill_monitors(&mut self) {
        let usual = self.task.kind.monitor();
        for monitor in [
            &mut self.checkpoint.monitor,
            &mut self.early_stopping.monitor,
        ] {
            monitor.get_or_insert_with(|| usual.to_owned());
        }
    }

    /// Expands the home folder and environment variables in paths.
    fn expand_paths(&mut self) -> Result<(), Fault> {
        let mut paths = self.data.kind.paths();
        paths.push(("model.weights", &mut self.model.weights));
        for (key, path) in paths {
            if let Some(path) = path {
                *path = paths::expand(path.as_os_str())
                    .map_err(|reason| Fault::in_key(key, format!("`{key}`: {reason}")))?;
            }
        }
        Ok(())
    }

    /// Serializes as TOML that parses to the same configuration.
    pub fn to_toml(&self) -> Result<String, ConfigError> {
        toml::to_string(self).map_err(|error| {
            ConfigError::new(format!("cannot write the configuration: {error}"), None)
        })
    }
}

/// Reads a file up to just above the size limit, which a later check enforces.
fn capped(file: File) -> std::io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    file.take(source::MAX_BYTES as u64 + 1)
        .read_to_end(&mut bytes)?;
    Ok(bytes)
}

fn unknown_section(key: &str, names: &[&str]) -> Fault {
    let fault = Fault::new(format!("unknown section `{key}`"));
    match section_with_key(key) {
        Some(section) => fault.help(format!("`{key}` belongs to [{section}]: {section}.{key}")),
        None => fault.help(suggest(key, names, "valid sections")),
    }
}

#[cfg(test)]
mod reference_tests;
#[cfg(test)]
mod tests;
