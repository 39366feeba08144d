//! The configuration of a run: parses a TOML file and `--set` arguments into a checked [`Config`].
//!
//! Parsing goes from text to tables with positions (`source`), sections (`section`), typed values
//! (`task`, `model`, `data`, `optimizer`, `schedule`, `sections`) and checks (`validate`,
//! `batching`). Every error knows its place in the text.

mod batching;
mod by_name;
mod class_weights;
mod data;
mod edited;
mod embedded;
mod error;
pub(crate) mod explain;
mod foreign;
mod groups;
pub mod metric;
mod mistyped;
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
pub(crate) mod suggest;
mod task;
pub(crate) mod template;
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
pub use class_weights::ClassWeights;
pub use data::*;
pub use embedded::{DEFAULT, EMBEDDED, Embedded};
pub use error::{ConfigError, Flaw};
pub use groups::GroupConfig;
pub use model::*;
pub use optimizer::*;
pub use precision::*;
pub use schedule::*;
pub use sections::*;
pub use task::*;

pub(crate) use foreign::Meaning;

use error::Fault;
use named::Named;
use section::{Section, fields};
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
    /// A mean of the parameters in the last part of the run.
    pub swa: SwaConfig,
    /// How the ranks work together.
    pub parallel: ParallelConfig,
    /// The logs that training writes.
    pub log: LogConfig,
    /// When the state of the run is saved.
    pub checkpoint: CheckpointConfig,
    /// When the run ends before its last epoch.
    pub early_stopping: EarlyStoppingConfig,
}

impl Config {
    /// Whether an average of the parameters is kept beside them.
    pub fn averages(&self) -> bool {
        self.ema.decay.is_some() || self.swa.start.is_some()
    }
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
        ("swa", fields::<SwaConfig>().to_vec()),
        ("parallel", fields::<ParallelConfig>().to_vec()),
        ("log", fields::<LogConfig>().to_vec()),
        ("checkpoint", fields::<CheckpointConfig>().to_vec()),
        ("early_stopping", fields::<EarlyStoppingConfig>().to_vec()),
    ]
}

/// The names of a section whose keys depend on its `name`; none of any other section.
pub(crate) fn names_of(section: &str) -> Vec<&'static str> {
    let all = variants().into_iter().filter(|(of, ..)| *of == section);
    all.map(|(_, name, _)| name).collect()
}

/// Whether `name` adds this key to its section.
pub(crate) fn has_key(section: &str, name: &str, key: &str) -> bool {
    let mut all = variants().into_iter();
    all.any(|(of, own, keys)| of == section && own == name && keys.contains(&key))
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

/// The format of a file that is no TOML, by its name.
fn other_format(path: &Path) -> Option<&'static str> {
    let ending = path.extension()?.to_str()?.to_lowercase();
    match ending.as_str() {
        "yaml" | "yml" => Some("YAML"),
        "json" => Some("JSON"),
        _ => None,
    }
}

/// Whether `name` looks like `section.key=value`.
fn is_setting(name: &str) -> bool {
    let part = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
    let key = name
        .split_once('=')
        .and_then(|(key, _)| key.split_once('.'));
    key.is_some_and(|(section, key)| {
        !section.is_empty() && !key.is_empty() && (section.chars().chain(key.chars())).all(part)
    })
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
            (Err(_), _) if path.is_dir() => Err(ConfigError::new(
                format!("the configuration {name} is a folder"),
                Some(format!(
                    "the configuration of a run is {name}/{}; --resume {name} continues the run",
                    run_name::CONFIG_FILE
                )),
            )),
            (Err(_), _) if is_setting(name) => Err(ConfigError::new(
                format!("`{name}` is a setting, not a configuration"),
                Some(format!("write --set {name}")),
            )),
            (Err(error), _) => {
                let names: Vec<&str> = EMBEDDED.iter().map(|config| config.name).collect();
                Err(ConfigError::new(
                    format!("cannot read the configuration {name}: {error}"),
                    Some(suggest::suggest(
                        &stem(path),
                        &names,
                        "shipped configurations",
                    )),
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
        if let Some(format) = other_format(path) {
            return Err(ConfigError::new(
                format!("{name} is a {format} file"),
                Some("configurations are TOML; `trainer init` writes one".to_owned()),
            ));
        }
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
            Config::checked(&mut root, &sources, &spans, over)
        });
        match config {
            Ok(config) => Ok(Self {
                config,
                name: name.to_owned(),
                sources,
                spans,
            }),
            Err(faults) => {
                let unknown = || ConfigError::new(format!("cannot read {file}"), None);
                Err(sources.errors(faults, &spans).unwrap_or_else(unknown))
            }
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
        Batching::resolve(&self.config.train, &self.config.parallel, world)
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
    /// Reads and checks all sections. Returns all faults.
    fn checked(
        root: &mut DeTable<'_>,
        sources: &Sources,
        spans: &BTreeMap<String, Range<usize>>,
        over: bool,
    ) -> Result<Self, Vec<Fault>> {
        let mut faults = Vec::new();
        let is_set = |span: &Range<usize>| sources.is_set(span);
        let (mut config, unnamed) = Self::read(root, &is_set, over, &mut faults);
        // Data, model and metrics depend on the task.
        if unnamed.contains(&TaskConfig::SECTION) {
            return Err(faults);
        }
        // A key on the command line cannot remove others from the file.
        let is_set = |key: &str| spans.get(key).is_some_and(|span| sources.is_set(span));
        let overridden = |by: &str, key: &str| over || is_set(by) && !is_set(key);
        let schedule = &mut config.schedule;
        schedule.forget_unused(|key| overridden("schedule.name", key));
        config.early_stopping.forget_unused(overridden);
        config.fill_monitors();
        let found = validate::check(&config).into_iter();
        let keys = faults
            .iter()
            .filter_map(|fault| fault.key.as_deref()?.split_once('.'));
        let wrong: Vec<String> = keys
            .map(|(section, _)| section)
            .chain(unnamed.iter().copied())
            .map(str::to_owned)
            .collect();
        let found = found.filter(|fault| !follows(fault, &wrong, &unnamed));
        let found: Vec<Fault> = found.collect();
        faults.extend(found);
        match faults.is_empty() {
            true => Ok(config),
            false => Err(faults),
        }
    }

    /// Reads all sections. Keys at fault get their defaults. Returns the sections whose name is
    /// missing or unknown too; they have any.
    fn read(
        root: &mut DeTable<'_>,
        is_set: &dyn Fn(&Range<usize>) -> bool,
        over: bool,
        faults: &mut Vec<Fault>,
    ) -> (Self, Vec<&'static str>) {
        let sections = sections();
        let names: Vec<&str> = sections.iter().map(|(name, _)| *name).collect();
        for key in root.keys() {
            if !names.contains(&key.get_ref().as_ref()) {
                faults.push(unknown_section(key.get_ref(), &names).at(key.span()));
            }
        }
        let mut take = |name, faults: &mut Vec<Fault>| Section::take(root, name, faults);
        let task = take("task", faults).choose(is_set, true, faults);
        let model = take("model", faults).choose(is_set, over, faults);
        let data = take("data", faults).choose(is_set, true, faults);
        let optimizer = take("optimizer", faults).choose(is_set, over, faults);
        let schedule = take("schedule", faults).choose(is_set, true, faults);
        let weights = take("weights", faults).read(faults);
        let train = take("train", faults).read(faults);
        let loss_scale = take("loss_scale", faults).read(faults);
        let ema = take("ema", faults).read(faults);
        let swa = take("swa", faults).read(faults);
        let parallel = take("parallel", faults).read(faults);
        let log = take("log", faults).read(faults);
        let checkpoint = take("checkpoint", faults).read(faults);
        let early_stopping = take("early_stopping", faults).read(faults);
        let mut unnamed = Vec::new();
        let mut config = Self {
            task: named::or_any(task, &mut unnamed),
            model: named::or_any(model, &mut unnamed),
            weights,
            data: named::or_any(data, &mut unnamed),
            optimizer: named::or_any(optimizer, &mut unnamed),
            schedule: named::or_any(schedule, &mut unnamed),
            train,
            loss_scale,
            ema,
            swa,
            parallel,
            log,
            checkpoint,
            early_stopping,
        };
        config.model.kind.fill();
        config.expand_paths(faults);
        (config, unnamed)
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
    fn expand_paths(&mut self, faults: &mut Vec<Fault>) {
        let mut paths = self.data.kind.paths();
        paths.push(("model.weights", &mut self.model.weights));
        for (key, path) in paths {
            let Some(path) = path else { continue };
            match paths::expand(path.as_os_str()) {
                Ok(expanded) => *path = expanded,
                Err(reason) => faults.push(Fault::in_key(key, format!("`{key}`: {reason}"))),
            }
        }
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
    let is_section = suggest::meant(key, names).is_some();
    fault.help(match key_meant(key).filter(|_| !is_section) {
        Some(Meaning::Key(path)) => match path.split_once('.') {
            Some((section, own)) if own == key => format!("`{key}` belongs to [{section}]: {path}"),
            _ => format!("did you mean {path}?"),
        },
        Some(Meaning::Elsewhere(advice)) => advice.to_owned(),
        None => suggest::suggest(key, names, "valid sections"),
    })
}

/// Whether `fault` may only follow from others: it concerns a section without its name, or mentions
/// a key of a section that is `wrong`, in which keys have their defaults.
fn follows(fault: &Fault, wrong: &[String], unnamed: &[&str]) -> bool {
    let own = fault.key.as_deref().unwrap_or_default();
    let section = |key: &str| key.split_once('.').map(|(section, _)| section.to_owned());
    if section(own).is_some_and(|section| unnamed.contains(&section.as_str())) {
        return true;
    }
    let text = format!(
        "{} {}",
        fault.message,
        fault.help.as_deref().unwrap_or_default()
    );
    let part_of_key = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || "_.".contains(c);
    let mentioned = text.split(|c| !part_of_key(c));
    let mentioned = mentioned.map(|word| word.trim_end_matches('.'));
    let mut others = mentioned.filter(|word| *word != own);
    others.any(|word| section(word).is_some_and(|section| wrong.contains(&section)))
}

/// The `section.key` that a word means, or how that is done without a key. `None` if unknown.
///
/// The word may be a key, with or without its section, in another spelling, or of another
/// framework.
pub(crate) fn key_meant(word: &str) -> Option<Meaning> {
    let (of, key) = match word.split_once('.') {
        Some((section, key)) => (Some(section), key),
        None => (None, word),
    };
    let all = sections();
    let sections = all
        .iter()
        .filter(|(section, _)| of.is_none_or(|of| of == *section));
    let mut found = sections.filter_map(|(section, keys)| {
        let same = |own: &&&str| suggest::plain(own) == suggest::plain(key);
        Some(format!("{section}.{}", keys.iter().find(same)?))
    });
    match (found.next(), found.next()) {
        (Some(path), None) => Some(Meaning::Key(path)),
        _ => foreign::meaning(key),
    }
}

#[cfg(test)]
mod reference_tests;
#[cfg(test)]
mod tests;
