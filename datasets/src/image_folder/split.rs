//! Selects the images of a class to keep for evaluation.

use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};

use crate::Split;

/// The `files` below the folder `class` that belong to `split`, if the share `part` is kept for
/// evaluation.
///
/// The files are ordered by a hash of the seed and their path from the class's name on. So neither
/// their order on disk nor the place of the data set matters, and a new file moves few others
/// between the splits.
pub(super) fn part(
    files: Vec<PathBuf>,
    class: &Path,
    part: f64,
    seed: u64,
    split: Split,
) -> Vec<PathBuf> {
    let kept = match files.len() {
        0 | 1 => 0,
        len => ((len as f64 * part).round() as usize).clamp(1, len - 1),
    };
    let mut keyed: Vec<([u8; 32], PathBuf)> = files
        .into_iter()
        .map(|file| (key(&file, class, seed), file))
        .collect();
    keyed.sort();
    let evaluation = keyed.drain(..kept);
    let mut chosen: Vec<PathBuf> = match split {
        Split::Test => evaluation.map(|(_, file)| file).collect(),
        Split::Train => {
            drop(evaluation);
            keyed.into_iter().map(|(_, file)| file).collect()
        }
    };
    chosen.sort();
    chosen
}

fn key(file: &Path, class: &Path, seed: u64) -> [u8; 32] {
    let mut hasher = Sha256::new();
    hasher.update(seed.to_le_bytes());
    let below = file.strip_prefix(class).unwrap_or(file);
    for name in class.file_name().into_iter().chain(below.iter()) {
        hasher.update(name.as_encoded_bytes());
        // Cannot be part of a name.
        hasher.update([0]);
    }
    hasher.finalize().into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn files(root: &str, count: usize) -> Vec<PathBuf> {
        (0..count)
            .map(|i| PathBuf::from(format!("{root}/cat/{}/{i}.png", i % 3)))
            .collect()
    }

    fn split_of(files: &[PathBuf], root: &str, fraction: f64, seed: u64) -> [Vec<PathBuf>; 2] {
        let class = Path::new(root).join("cat");
        [Split::Train, Split::Test].map(|split| part(files.to_vec(), &class, fraction, seed, split))
    }

    proptest! {
        #[test]
        fn every_file_is_in_one_split(count in 0usize..60, fraction in 0.01f64..0.99, seed: u64) {
            let mut all = files("a", count);
            let [train, test] = split_of(&all, "a", fraction, seed);
            let mut both = [train.clone(), test.clone()].concat();
            both.sort();
            all.sort();
            prop_assert_eq!(&both, &all);
            if count >= 2 {
                prop_assert!(!train.is_empty() && !test.is_empty());
                let exact = count as f64 * fraction;
                prop_assert!((test.len() as f64 - exact).abs() <= 1.0);
            }
            all.reverse();
            prop_assert_eq!(split_of(&all, "a", fraction, seed), [train, test]);
        }
    }

    #[test]
    fn the_place_does_not_matter_but_the_seed_does() {
        let strip = |[_, test]: [Vec<PathBuf>; 2], root: &str| -> Vec<PathBuf> {
            let names = test.iter().map(|file| file.strip_prefix(root).unwrap());
            names.map(Path::to_owned).collect()
        };
        let here = strip(split_of(&files("a", 40), "a", 0.25, 1), "a");
        assert_eq!(here.len(), 10);
        assert_eq!(
            here,
            strip(split_of(&files("b/c", 40), "b/c", 0.25, 1), "b/c")
        );
        assert_ne!(here, strip(split_of(&files("a", 40), "a", 0.25, 2), "a"));
    }
}
