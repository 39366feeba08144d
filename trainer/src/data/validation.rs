//! Divides training data into that for training and that for validation.

use std::sync::Arc;

use datasets::{Dataset, DatasetError};
use sha2::{Digest, Sha256};

use super::Picked;

/// Divides `dataset` into training and validation images by class.
///
/// # Errors
/// Fails if a label cannot be read, or no class has two images.
pub(super) fn divide(
    dataset: Arc<dyn Dataset>,
    share: f64,
    seed: u64,
) -> Result<[Arc<dyn Dataset>; 2], DatasetError> {
    let labels: Result<Vec<u32>, _> = (0..dataset.len())
        .map(|index| dataset.label(index))
        .collect();
    let parts = held_out(&labels?, share, seed)?;
    Ok(parts.map(|indices| {
        let dataset = dataset.clone();
        Arc::new(Picked { dataset, indices }) as Arc<dyn Dataset>
    }))
}

/// Indices of the items for training and for validation, with about the same `share` of every
/// class for validation.
///
/// A class with two or more items has at least one in each part. The parts depend only on the
/// seed, the labels and the share, so they are the same on all ranks and for any number of ranks.
/// Both are ascending.
///
/// # Errors
/// Fails if no class has two items.
pub(crate) fn held_out(
    labels: &[u32],
    share: f64,
    seed: u64,
) -> Result<[Vec<usize>; 2], DatasetError> {
    let parts = parts(labels, share, seed);
    match parts.iter().any(Vec::is_empty) {
        true => Err(too_few(share)),
        false => Ok(parts),
    }
}

/// The error of a share that leaves no data for training or for validation.
pub(crate) fn too_few(share: f64) -> DatasetError {
    DatasetError::Settings {
        what: "data.validation",
        reason: format!("the training data is too small to hold out {share} of it"),
    }
}

fn parts(labels: &[u32], share: f64, seed: u64) -> [Vec<usize>; 2] {
    let mut keyed: Vec<(u32, [u8; 32], usize)> = labels
        .iter()
        .enumerate()
        .map(|(index, label)| (*label, key(index, seed), index))
        .collect();
    keyed.sort_unstable();
    let (mut train, mut validation) = (Vec::new(), Vec::new());
    for class in keyed.chunk_by(|one, other| one.0 == other.0) {
        let kept = match class.len() {
            0 | 1 => 0,
            len => ((len as f64 * share).round() as usize).clamp(1, len - 1),
        };
        let (kept, rest) = class.split_at(kept);
        validation.extend(kept.iter().map(|(_, _, index)| *index));
        train.extend(rest.iter().map(|(_, _, index)| *index));
    }
    train.sort_unstable();
    validation.sort_unstable();
    [train, validation]
}

/// A random number of an item, which decides its part.
fn key(index: usize, seed: u64) -> [u8; 32] {
    let mut hasher = Sha256::new();
    hasher.update(b"validation");
    hasher.update(seed.to_le_bytes());
    hasher.update((index as u64).to_le_bytes());
    hasher.finalize().into()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use datasets::{Digits, Split};
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn every_image_is_in_one_part_and_every_class_in_both(
            labels in prop::collection::vec(0u32..5, 0..80),
            share in 0.01f64..0.99,
            seed: u64,
        ) {
            let [train, validation] = parts(&labels, share, seed);
            let mut all = [train.clone(), validation.clone()].concat();
            prop_assert!(train.is_sorted() && validation.is_sorted());
            all.sort_unstable();
            prop_assert!(all.into_iter().eq(0..labels.len()));
            let count = |of: &[usize]| {
                let mut counts = BTreeMap::<u32, f64>::new();
                of.iter().for_each(|index| *counts.entry(labels[*index]).or_default() += 1.0);
                counts
            };
            let (all, kept) = (count(&(0..labels.len()).collect::<Vec<_>>()), count(&validation));
            for (label, of) in all {
                let kept = kept.get(&label).copied().unwrap_or_default();
                prop_assert!((kept - of * share).abs() <= 1.0);
                prop_assert_eq!(of >= 2.0, kept >= 1.0);
                prop_assert!(of > kept);
            }
        }
    }

    #[test]
    fn the_seed_decides_and_images_keep_their_labels() {
        let digits: Arc<dyn Dataset> = Arc::new(Digits::new(Split::Train, 200, 1));
        let labels: Vec<u32> = (0..200).map(|index| digits.label(index).unwrap()).collect();
        assert_eq!(parts(&labels, 0.1, 1), parts(&labels, 0.1, 1));
        let [_, validation] = parts(&labels, 0.1, 1);
        assert_ne!(validation, parts(&labels, 0.1, 2)[1]);
        let [train, kept] = divide(digits.clone(), 0.1, 1).unwrap();
        assert_eq!((train.len(), kept.len()), (180, 20));
        let [mut one, mut other] = [vec![0; 784], vec![0; 784]];
        for (index, origin) in validation.into_iter().enumerate() {
            let label = kept.read(index, &mut one).unwrap();
            assert_eq!(label, digits.read(origin, &mut other).unwrap());
            assert_eq!(label, kept.label(index).unwrap());
            assert_eq!(one, other);
        }
        assert!(kept.label(20).is_err());
    }

    #[test]
    fn classes_of_one_image_cannot_be_divided() {
        let digits = Arc::new(Digits::new(Split::Train, 10, 1));
        let error = divide(digits, 0.5, 1).err().unwrap().to_string();
        assert!(error.contains("data.validation"), "{error}");
    }
}
