//! Differences of a resumed run from the run before: configuration keys and learning rate.

use std::path::Path;

use burn_dist::checkpoint::Manifest;
use burn_dist::parallel::ParallelError;
use toml::Table;

use crate::config::run_name::CONFIG_FILE;
use crate::config::{Config, Loaded};
use crate::data::input::steps_per_epoch;
use crate::error::TrainError;
use crate::run::metrics::{Changed, ResumeLine};
use crate::run::resume::{Start, run_of};
use crate::run::same_config::{NOT_SET, differences};
use crate::system::whole_file;
use crate::task::Items;
use crate::train::progress::Meta;
use crate::train::schedule::Schedule;

/// The run that wrote a checkpoint.
pub(crate) struct Before {
    ranks: usize,
    /// Its configuration, if known.
    config: Option<String>,
}

impl Before {
    /// Reads the configuration behind `checkpoint`.
    ///
    /// Call it before the run folder gets the new configuration: checkpoints of earlier versions do
    /// not contain theirs.
    pub fn of(checkpoint: &Path) -> Option<Self> {
        let before = Self::of_manifest(&Manifest::read(checkpoint).ok()?);
        let in_run = || {
            let run = run_of(checkpoint)?;
            whole_file::read_text(&run.join(CONFIG_FILE)).ok()
        };
        Some(Self {
            config: before.config.or_else(in_run),
            ..before
        })
    }

    /// Reads the configuration that a state contains.
    fn of_manifest(manifest: &Manifest) -> Self {
        Self {
            ranks: manifest.world_size,
            config: Meta::config_of(manifest),
        }
    }

    /// Reads the configuration behind the state that a run continues from. As [`of`](Self::of).
    pub fn of_start(start: &Start) -> Option<Self> {
        match (&start.memory, &start.checkpoint) {
            (Some(memory), _) => Some(Self::of_manifest(memory.manifest())),
            (None, Some(path)) => Self::of(path),
            (None, None) => None,
        }
    }
}

/// The run that continues.
pub(crate) struct Now<'a> {
    pub config: &'a Config,
    pub ranks: usize,
    pub items: Items,
    pub schedule: &'a Schedule,
}

impl Now<'_> {
    /// Compares with the run that wrote the checkpoint after `steps` steps.
    ///
    /// `None` if nothing changed or the earlier configuration is not known.
    pub fn since(&self, before: &Before, steps: u64) -> Option<ResumeLine> {
        let (stored, ranks) = (before.config.as_deref(), before.ranks);
        let before = stored.and_then(|text| Loaded::of_run(text).ok());
        // A configuration of another version that this one cannot parse is compared as plain TOML.
        let table = match &before {
            Some(loaded) => Table::try_from(&loaded.config).ok(),
            None => stored.and_then(|text| text.parse().ok()),
        };
        let now = Table::try_from(self.config).ok()?;
        let mut changes: Vec<Changed> = table
            .map(|before| differences(&before, &now))
            .unwrap_or_default()
            .into_iter()
            .map(|(key, before, after)| Changed { key, before, after })
            .collect();
        if ranks != self.ranks {
            changes.push(Changed {
                key: "ranks".to_owned(),
                before: ranks.to_string(),
                after: self.ranks.to_string(),
            });
        }
        if changes.is_empty() {
            return None;
        }
        let first = steps + 1;
        let before = before.and_then(|loaded| self.schedule_of(&loaded, ranks));
        let rates = before.map(|before| [before.lr(steps.max(1)), before.lr(first)]);
        Some(ResumeLine {
            step: first,
            changes,
            lr_before: rates.map(|[last, _]| last),
            lr_unchanged: rates.map(|[_, next]| next),
            lr: self.schedule.lr(first),
        })
    }

    /// The schedule of a run with configuration `before` on the same data.
    fn schedule_of(&self, before: &Loaded, ranks: usize) -> Option<Schedule> {
        let batching = before.batching(ranks).ok()?;
        let steps = steps_per_epoch(&before.config, self.items.train, batching.global);
        if steps == 0 {
            return None;
        }
        let schedule = Schedule::of_run(&before.config, steps, batching);
        Some(schedule.after(self.schedule.seen()))
    }
}

/// The first key that selects images and differs from the checkpoint, with advice.
pub(crate) fn of_data(manifest: &Manifest, now: &Config) -> Option<String> {
    let before: Table = Meta::config_of(manifest)?.parse().ok()?;
    let changed = differences(&before, &Table::try_from(now).ok()?);
    let likely = ["data.", "train.overfit_batches"];
    let first = |start: &str| changed.iter().find(|(key, ..)| key.starts_with(start));
    let (key, before, now) = likely.into_iter().find_map(first)?;
    Some(format!("{key} was {before} and is {now}: set it back"))
}

/// Replaces `error` by a setting that explains it and differs from the run `before`.
///
/// Returns `error` if none does.
pub(crate) fn of_restore(
    error: TrainError,
    before: impl FnOnce() -> Option<Before>,
    now: &Config,
) -> TrainError {
    let TrainError::Parallel(ParallelError::Restore {
        path: tensor,
        reason,
    }) = &error
    else {
        return error;
    };
    let table = |text: String| text.parse::<Table>().ok();
    let before = before().and_then(|before| table(before.config?));
    let (Some(before), Ok(now)) = (before, Table::try_from(now)) else {
        return error;
    };
    let changed = differences(&before, &now);
    let first = |start: &str| changed.iter().find(|(key, ..)| key.starts_with(start));
    // A different name has different keys.
    let likely = [
        "model.name",
        "optimizer.name",
        "model.",
        "optimizer.",
        "ema.",
        "swa.",
    ];
    match likely.into_iter().find_map(first) {
        Some((key, before, now)) => TrainError::Resume(format!(
            "cannot restore `{tensor}`: {reason}. {key} was {before} and is {now}: set it back, or \
             start a new run"
        )),
        None => error,
    }
}

/// The changes in words, a line each.
pub(crate) fn say(line: &ResumeLine) -> Vec<String> {
    let before = line.step.saturating_sub(1);
    let mut said = vec![format!("changed since step {before}:")];
    let changed = |change: &Changed| {
        let Changed { key, before, after } = change;
        format!("  {key}: {before} → {after}")
    };
    said.extend(line.changes.iter().map(changed));
    let names_weights = |change: &Changed| change.key == "model.weights" && change.after != NOT_SET;
    if line.changes.iter().any(names_weights) {
        said.push(
            "warning: model.weights is ignored, because the run resumes with the weights of its \
             checkpoint. To use that file, start a new run"
                .to_owned(),
        );
    }
    if let (Some(last), Some(unchanged)) = (line.lr_before, line.lr_unchanged)
        && unchanged != line.lr
    {
        said.push(format!(
            "  learning rate: {} at step {before} → {} at step {} ({} without the change)",
            rate(last),
            rate(line.lr),
            line.step,
            rate(unchanged)
        ));
    }
    said
}

/// A learning rate with the digits that a reader needs.
fn rate(lr: f64) -> String {
    let rounded: f64 = format!("{lr:.3e}").parse().unwrap_or(lr);
    match rounded == 0.0 || rounded.abs() >= 1e-3 {
        true => rounded.to_string(),
        false => format!("{rounded:e}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_short() {
        for (lr, text) in [
            (0.1, "0.1"),
            (0.1 + 0.2, "0.3"),
            (7.5e-4, "7.5e-4"),
            (1.541_333_1e-6, "1.541e-6"),
            (0.0, "0"),
            (0.001, "0.001"),
        ] {
            assert_eq!(rate(lr), text);
        }
    }

    #[test]
    fn a_rate_that_is_as_it_would_have_been_is_not_told() {
        let line = |lr| ResumeLine {
            step: 41,
            changes: vec![Changed {
                key: "optimizer.lr".to_owned(),
                before: "0.1".to_owned(),
                after: "0.01".to_owned(),
            }],
            lr_before: Some(0.1),
            lr_unchanged: Some(0.05),
            lr,
        };
        let said = say(&line(0.01));
        assert_eq!(
            said[..2],
            ["changed since step 40:", "  optimizer.lr: 0.1 → 0.01"]
        );
        assert_eq!(
            said[2],
            "  learning rate: 0.1 at step 40 → 0.01 at step 41 (0.05 without the change)"
        );
        assert_eq!(say(&line(0.05)).len(), 2);
    }
}
