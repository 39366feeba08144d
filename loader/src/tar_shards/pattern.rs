//! Names of shards with ranges in braces.

use std::path::PathBuf;

use super::TarError;

/// Largest number of names of a pattern.
const MOST: usize = 1 << 20;

/// Expands each `{a..b}` of `pattern`; numbers keep the width of `a`.
pub(super) fn expand(pattern: &str) -> Result<Vec<PathBuf>, TarError> {
    let wrong = |reason| TarError::Pattern {
        pattern: pattern.to_owned(),
        reason,
    };
    let mut names = vec![String::new()];
    let mut rest = pattern;
    while let Some((before, after)) = rest.split_once('{') {
        let (range, after) = after.split_once('}').ok_or(wrong("a brace is open"))?;
        let (first, last) = range.split_once("..").ok_or(wrong("a range has no .."))?;
        let number = |text: &str| text.parse::<usize>();
        let (Ok(from), Ok(to)) = (number(first), number(last)) else {
            return Err(wrong("a range has ends that are not numbers"));
        };
        let count = to.saturating_sub(from).saturating_add(1);
        if from > to || names.len().saturating_mul(count) > MOST {
            return Err(wrong("a range is empty or has too many numbers"));
        }
        let width = first.len();
        let numbered = |name: &String| {
            let name = format!("{name}{before}");
            (from..=to).map(move |number| format!("{name}{number:0width$}"))
        };
        names = names.iter().flat_map(numbered).collect();
        rest = after;
    }
    let paths = names.into_iter().map(|name| PathBuf::from(name + rest));
    Ok(paths.collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn expanded(pattern: &str) -> Vec<String> {
        let paths = expand(pattern).unwrap();
        paths
            .iter()
            .map(|path| path.display().to_string())
            .collect()
    }

    #[test]
    fn ranges_are_expanded_in_order() {
        let names = expanded("d/shard-{08..11}.tar");
        assert_eq!(
            names,
            [
                "d/shard-08.tar",
                "d/shard-09.tar",
                "d/shard-10.tar",
                "d/shard-11.tar"
            ]
        );
        assert_eq!(expanded("{1..2}-{3..4}"), ["1-3", "1-4", "2-3", "2-4"]);
        assert_eq!(expanded("one.tar"), ["one.tar"]);
    }

    #[test]
    fn malformed_ranges_are_refused() {
        for pattern in [
            "{0..",
            "{1}",
            "{a..b}",
            "{3..2}",
            "{0..99999999}",
            "{0..1023}{0..1024}",
        ] {
            let error = expand(pattern).unwrap_err().to_string();
            assert!(error.contains(pattern), "{error}");
        }
    }
}
