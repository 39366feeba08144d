//! Weights of classes and samples, for data sets with rare classes.

use super::check_positive;
use crate::SamplerError;

/// One weight per class, inverse to its number of samples: samples / (classes × count).
///
/// The weights of all samples have the mean 1, so a weighted loss keeps its size. A class without
/// samples gets weight 0 and does not count in `classes`. scikit-learn calls these weights
/// "balanced".
///
/// ```
/// let weights = loader::class_weights(&[0, 0, 0, 1], 2)?;
/// assert_eq!(weights, [4.0 / 6.0, 4.0 / 2.0]);
/// # Ok::<(), loader::SamplerError>(())
/// ```
///
/// # Errors
/// [`SamplerError::Zero`] if `classes` is 0, and [`SamplerError::Label`] if a label is not below
/// it.
pub fn class_weights(labels: &[usize], classes: usize) -> Result<Vec<f64>, SamplerError> {
    check_positive("the number of classes", classes)?;
    let mut counts = vec![0_usize; classes];
    for (index, &label) in labels.iter().enumerate() {
        let error = SamplerError::Label {
            index,
            label,
            classes,
        };
        *counts.get_mut(label).ok_or(error)? += 1;
    }
    let present = counts.iter().filter(|&&count| count > 0).count();
    let weight = |count: usize| match count {
        0 => 0.0,
        _ => labels.len() as f64 / (present * count) as f64,
    };
    Ok(counts.into_iter().map(weight).collect())
}

/// One weight per sample, so that [`TrainSampler::weighted`](super::TrainSampler::weighted) draws
/// all classes equally often.
///
/// ```
/// use loader::{TrainSampler, sample_weights};
///
/// let labels = [0, 0, 0, 0, 0, 0, 0, 1];
/// let weights = sample_weights(&labels, 2)?;
/// let sampler = TrainSampler::new(labels.len(), 4, 4, 0, 1, 42)?.weighted(&weights)?;
/// let rare = |epoch| sampler.epoch(epoch).iter().flatten().filter(|&&index| index == 7).count();
/// let drawn: usize = (0..100).map(rare).sum();
/// assert!((350..450).contains(&drawn)); // half of 800 draws
/// # Ok::<(), loader::SamplerError>(())
/// ```
///
/// # Errors
/// As [`class_weights`].
pub fn sample_weights(labels: &[usize], classes: usize) -> Result<Vec<f64>, SamplerError> {
    let weights = class_weights(labels, classes)?;
    let weight = |&label: &usize| weights.get(label).copied().unwrap_or_default();
    Ok(labels.iter().map(weight).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn weights_of_samples_have_the_mean_one() {
        let labels = [3, 1, 1, 3, 3, 3, 1, 3, 0];
        let weights = sample_weights(&labels, 5).unwrap();
        let mean = weights.iter().sum::<f64>() / labels.len() as f64;
        assert!((mean - 1.0).abs() < 1e-12, "{mean}");
        let classes = class_weights(&labels, 5).unwrap();
        assert_eq!((classes[2], classes[4]), (0.0, 0.0));
        assert_eq!(classes[0], 3.0);
    }

    #[test]
    fn impossible_labels_are_refused() {
        let error = class_weights(&[0, 2], 2).unwrap_err();
        assert_eq!(
            error.to_string(),
            "sample 1 has label 2, but there are 2 classes"
        );
        assert!(class_weights(&[], 0).is_err());
        assert_eq!(class_weights(&[], 2).unwrap(), [0.0, 0.0]);
    }
}
