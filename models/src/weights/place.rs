//! Finds the model's state dict in a file: the dictionary and the common prefix under which names
//! and shapes match.

use std::collections::{BTreeMap, HashMap};

use super::layout::Slot;
use super::source::Entry;

/// Names under which training scripts put the model's state dict into a checkpoint, the most likely
/// first. They decide if several dictionaries match.
const WRAPPERS: [&str; 6] = [
    "",
    "state_dict.",
    "model_state_dict.",
    "model.",
    "net.",
    "params.",
];
/// Prefixes that distributed data parallel, `torch.compile` and averages of models add to every
/// name.
const PREFIXES: [&str; 2] = ["module.", "_orig_mod."];

/// How well a place matches.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
struct Score {
    /// Number of tensors whose names and shapes match.
    fits: usize,
    /// Number of tensors whose names match.
    names: usize,
}

/// The prefix of `slots` in `entries` under which most of them match, as decided by `takes`, and
/// all others under which as many do. It begins with `part`. `None` if no name is found anywhere.
pub(super) fn prefixes(
    slots: &[Slot],
    entries: &BTreeMap<String, Entry>,
    part: &str,
    takes: impl Fn(&Slot, &Entry) -> bool,
) -> Option<(String, Vec<String>)> {
    let by_name: HashMap<&str, &Slot> =
        slots.iter().map(|slot| (slot.key.as_str(), slot)).collect();
    let mut scores: BTreeMap<&str, Score> = BTreeMap::new();
    for (full, entry) in entries {
        let starts = full.match_indices('.').map(|(at, _)| at + 1);
        for start in [0].into_iter().chain(starts) {
            let (prefix, name) = full.split_at(start);
            if let Some(slot) = by_name.get(name).filter(|_| prefix.starts_with(part)) {
                let score = scores.entry(prefix).or_default();
                score.names += 1;
                score.fits += usize::from(takes(slot, entry));
            }
        }
    }
    let best = scores.values().max().copied()?;
    let equal = scores.iter().filter(|(_, score)| **score == best);
    let mut equal: Vec<&str> = equal.map(|(prefix, _)| *prefix).collect();
    equal.sort_by_key(|prefix| rank(prefix.strip_prefix(part).unwrap_or(prefix)));
    let mut equal = equal.into_iter().map(str::to_owned);
    let first = equal.next()?;
    Some((first, equal.collect()))
}

/// Rank of a prefix by the name of the dictionary and its depth; smaller is more likely.
fn rank(prefix: &str) -> (usize, usize) {
    let dictionary = state_dict(prefix);
    let known = WRAPPERS.iter().position(|wrapper| *wrapper == dictionary);
    (known.unwrap_or(WRAPPERS.len()), prefix.matches('.').count())
}

/// The part of `prefix` that leads to the state dict in the checkpoint; the rest belongs to its
/// names.
fn state_dict(prefix: &str) -> &str {
    let mut place = prefix;
    while let Some(shorter) = PREFIXES.iter().find_map(|inner| {
        let shorter = place.strip_suffix(inner)?;
        // Not a part of a longer name.
        (shorter.is_empty() || shorter.ends_with('.')).then_some(shorter)
    }) {
        place = shorter;
    }
    place
}
