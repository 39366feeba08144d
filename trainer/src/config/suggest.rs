//! Suggests what the user meant by a name that does not exist.

use super::foreign;

/// Minimum similarity (Jaro-Winkler, 0 to 1) for a suggestion.
const SIMILAR: f64 = 0.75;
/// Similarity above which a key of the same section beats an equal name in another section.
pub(super) const VERY_SIMILAR: f64 = 0.88;
/// Longest name to compare, in bytes: the time of a comparison is the product of the lengths.
const LONGEST: usize = 100;

/// A suggestion "did you mean ...?" if a valid name is near, and the list of valid names.
pub fn suggest(wrong: &str, valid: &[&str], what: &str) -> String {
    let all = format!("{what}: {}", valid.join(", "));
    match nearest(wrong, valid) {
        Some(near) => format!("did you mean `{near}`? ({all})"),
        None => all,
    }
}

/// The valid name that a wrong one means, if any is near.
///
/// The same name in other letters or with other separators comes first, then the words of other
/// frameworks, then the most similar name.
pub fn nearest<'a>(wrong: &str, valid: &[&'a str]) -> Option<&'a str> {
    meant(wrong, valid).or_else(|| similar(wrong, valid, SIMILAR))
}

/// The valid name that a wrong one means by another spelling, or in another framework.
pub(super) fn meant<'a>(wrong: &str, valid: &[&'a str]) -> Option<&'a str> {
    let wrong = plain(wrong);
    let find = |ours: &str| valid.iter().copied().find(|name| plain(name) == ours);
    find(&wrong).or_else(|| foreign::names(&wrong).find_map(|ours| find(&plain(ours))))
}

/// The most similar valid name, if its similarity is at least `least`.
pub(super) fn similar<'a>(wrong: &str, valid: &[&'a str], least: f64) -> Option<&'a str> {
    if wrong.len() > LONGEST {
        return None;
    }
    let wrong = wrong.to_lowercase();
    valid
        .iter()
        .map(|name| (strsim::jaro_winkler(&wrong, name), *name))
        .filter(|(similarity, _)| *similarity >= least)
        .max_by(|a, b| a.0.total_cmp(&b.0))
        .map(|(_, name)| name)
}

/// A name in lower case, without separators.
pub(super) fn plain(name: &str) -> String {
    let letters = name.chars().take(LONGEST).filter(|c| c.is_alphanumeric());
    letters.flat_map(char::to_lowercase).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spelling_comes_before_other_frameworks_and_these_before_similarity() {
        for (wrong, valid, expected) in [
            ("AdamW", &["adam", "adamw"][..], "adamw"),
            ("Weight-Decay", &["lr", "weight_decay"], "weight_decay"),
            ("CIFAR10", &["cifar-100", "cifar-10"], "cifar-10"),
            ("gpu", &["auto", "cpu", "cuda", "wgpu"], "cuda"),
            ("fsdp", &["ddp", "zero-1", "zero-3"], "zero-3"),
            ("bf17", &["f32", "bf16", "f16"], "bf16"),
        ] {
            assert_eq!(nearest(wrong, valid), Some(expected), "{wrong}");
        }
        assert_eq!(nearest("gpu", &["mnist", "digits"]), None);
        assert_eq!(nearest(&"x".repeat(1 << 20), &["x"]), None);
    }
}
