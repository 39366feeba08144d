//! Whether all ranks were given the same configuration: an old file on one node, or a `--set` that
//! one task got and another did not, would train something that nobody asked for.

use burn_dist::ProcessGroup;
use toml::{Table, Value};

use crate::config::Config;
use crate::error::TrainError;

/// Compares the configurations of all ranks. Only `data.dir` may differ, for nodes keep their data
/// in different places. A collective call.
///
/// # Errors
/// [`TrainError::ConfigDiffers`] on all ranks alike, if they are not all the same.
pub(crate) fn check(config: &Config, group: &ProcessGroup) -> Result<(), TrainError> {
    let mut text = Table::try_from(config)
        .map(|mut table| {
            if let Some(Value::Table(data)) = table.get_mut("data") {
                data.remove("dir");
            }
            table.to_string()
        })
        .unwrap_or_default();
    let texts = group.gather_bytes(text.as_bytes())?;
    let Some(rank) = texts.iter().position(|other| *other != texts[0]) else {
        return Ok(());
    };
    let mut read = |bytes: &[u8]| {
        text = String::from_utf8_lossy(bytes).into_owned();
        text.parse::<Table>().unwrap_or_default()
    };
    let (first, other) = (read(&texts[0]), read(&texts[rank]));
    let (key, ours, theirs) = difference("", &first, &other).unwrap_or_default();
    Err(TrainError::ConfigDiffers {
        rank,
        key,
        ours,
        theirs,
    })
}

/// The first key whose value differs, and both values.
fn difference(path: &str, one: &Table, other: &Table) -> Option<(String, String, String)> {
    let mut keys: Vec<&String> = one.keys().chain(other.keys()).collect();
    keys.sort();
    keys.dedup();
    keys.into_iter().find_map(|key| {
        let path = match path {
            "" => key.clone(),
            _ => format!("{path}.{key}"),
        };
        match (one.get(key), other.get(key)) {
            (Some(Value::Table(one)), Some(Value::Table(other))) => difference(&path, one, other),
            (one, other) if one == other => None,
            (one, other) => {
                let text = |value: Option<&Value>| value.map_or("not set".into(), Value::to_string);
                Some((path, text(one), text(other)))
            }
        }
    })
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
        let found = |one, other| difference("", one, other).unwrap();
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
        assert_eq!(difference("", &one, &one.clone()), None);
    }
}
