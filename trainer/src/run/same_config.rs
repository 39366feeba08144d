//! Checks that all ranks have the same configuration. An old file on one node, or a `--set` that
//! only one task got, would train something unintended.

use burn_dist::ProcessGroup;
use toml::{Table, Value};

use crate::config::Config;
use crate::error::TrainError;

/// Compares the configurations of all ranks. Only `data.dir` may differ, because nodes keep data in
/// different places. A collective call.
///
/// # Errors
/// [`TrainError::ConfigDiffers`] on all ranks, if they differ.
pub(crate) fn check(config: &Config, group: &ProcessGroup) -> Result<(), TrainError> {
    let mut text = shared(config).to_string();
    let texts = group.gather_bytes(text.as_bytes())?;
    let Some(rank) = texts.iter().position(|other| *other != texts[0]) else {
        return Ok(());
    };
    let mut read = |bytes: &[u8]| {
        text = String::from_utf8_lossy(bytes).into_owned();
        text.parse::<Table>().unwrap_or_default()
    };
    let (first, other) = (read(&texts[0]), read(&texts[rank]));
    let difference = differences(&first, &other).into_iter().next();
    let (key, ours, theirs) = difference.unwrap_or_default();
    Err(TrainError::ConfigDiffers {
        rank,
        key,
        ours,
        theirs,
    })
}

/// The settings that nodes share, a line each.
pub(crate) fn lines(config: &Config) -> Vec<String> {
    let mut lines = Vec::new();
    for (section, keys) in shared(config) {
        match keys {
            Value::Table(keys) => {
                let line = |(key, value)| format!("{section}.{key} = {value}");
                lines.extend(keys.into_iter().map(line));
            }
            value => lines.push(format!("{section} = {value}")),
        }
    }
    lines
}

/// The configuration without what nodes may have of their own.
fn shared(config: &Config) -> Table {
    let mut table = Table::try_from(config).unwrap_or_default();
    if let Some(Value::Table(data)) = table.get_mut("data") {
        data.remove("dir");
    }
    table
}

/// Stands for a key without a value.
pub(crate) const NOT_SET: &str = "not set";

/// The keys whose values differ, in order, and both values.
pub(crate) fn differences(one: &Table, other: &Table) -> Vec<(String, String, String)> {
    let mut found = Vec::new();
    differences_in("", one, other, &mut found);
    found
}

fn differences_in(
    path: &str,
    one: &Table,
    other: &Table,
    found: &mut Vec<(String, String, String)>,
) {
    let mut keys: Vec<&String> = one.keys().chain(other.keys()).collect();
    keys.sort();
    keys.dedup();
    for key in keys {
        let path = match path {
            "" => key.clone(),
            _ => format!("{path}.{key}"),
        };
        match (one.get(key), other.get(key)) {
            (Some(Value::Table(one)), Some(Value::Table(other))) => {
                differences_in(&path, one, other, found);
            }
            (one, other) if one == other => {}
            (one, other) => {
                let text = |value: Option<&Value>| value.map_or(NOT_SET.into(), Value::to_string);
                found.push((path, text(one), text(other)));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_difference_is_named_with_both_values() {
        let one: Table = "[train]\nepochs = 2\nseed = 1\n[ema]\n".parse().unwrap();
        let other: Table = "[train]\nepochs = 3\nseed = 1\n[ema]\ndecay = 0.5\n"
            .parse()
            .unwrap();
        let found = |one, other| differences(one, other).swap_remove(0);
        let (key, ours, theirs) = found(&one, &other);
        assert_eq!(
            (key.as_str(), ours.as_str(), theirs.as_str()),
            ("ema.decay", "not set", "0.5")
        );
        let other: Table = "[train]\nepochs = 3\nseed = 1\n[ema]\n".parse().unwrap();
        let (key, ours, theirs) = found(&one, &other);
        assert_eq!(
            (key.as_str(), ours.as_str(), theirs.as_str()),
            ("train.epochs", "2", "3")
        );
        assert_eq!(differences(&one, &one.clone()), []);
        let other: Table = "[train]\nepochs = 3\n[ema]\n".parse().unwrap();
        let keys: Vec<String> = differences(&one, &other).into_iter().map(|d| d.0).collect();
        assert_eq!(keys, ["train.epochs", "train.seed"]);
    }
}
