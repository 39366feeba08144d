//! The training loss of a classifier: cross-entropy with label smoothing and mixed labels.

use burn::tensor::Tensor;
use kernels::ops;

use crate::data::batch::Targets;

/// Mean cross-entropy over a micro-batch, with label smoothing.
///
/// A fraction `smoothing` (0 to 1) of each label is spread evenly over all classes (Szegedy et al.
/// 2016, <https://arxiv.org/abs/1512.00567>), as in PyTorch's `label_smoothing`. A mixed image
/// counts for both its classes by their weights (Zhang et al. 2018,
/// <https://arxiv.org/abs/1710.09412>).
///
/// `logits` is \[samples, classes\] of any float type. The loss is computed in `f32` and has one
/// element.
pub fn of(logits: Tensor<2>, targets: Targets, smoothing: f64) -> Tensor<1> {
    let other = targets.mix.map(|mix| (mix.labels, mix.weights));
    ops::cross_entropy(logits, targets.labels, other, smoothing)
}

#[cfg(test)]
mod tests {
    use super::*;
    use burn::tensor::{Device, Int};

    use crate::data::batch::Mix;

    const LOGITS: [[f32; 3]; 2] = [[0.5, -1.0, 2.0], [1.0, 0.0, 0.25]];

    fn logits() -> Tensor<2> {
        Tensor::from_floats(LOGITS, &Device::flex())
    }

    fn labels(values: [i32; 2]) -> Tensor<1, Int> {
        Tensor::from_ints(values, &Device::flex())
    }

    fn targets(values: [i32; 2], mix: Option<Mix>) -> Targets {
        Targets {
            labels: labels(values),
            mix,
        }
    }

    /// The mean over samples of `-sum(target * log softmax)`, in double precision.
    fn expected(targets: [[f64; 3]; 2]) -> f64 {
        let sample = |(logits, target): (&[f32; 3], &[f64; 3])| {
            let sum: f64 = logits.iter().map(|x| f64::from(*x).exp()).sum();
            let log_probability = |x: &f32| f64::from(*x) - sum.ln();
            -logits
                .iter()
                .zip(target)
                .map(|(x, t)| t * log_probability(x))
                .sum::<f64>()
        };
        LOGITS.iter().zip(&targets).map(sample).sum::<f64>() / 2.0
    }

    #[track_caller]
    fn assert_loss(targets: Targets, smoothing: f64, wanted: [[f64; 3]; 2]) {
        let loss = f64::from(of(logits(), targets, smoothing).into_scalar::<f32>());
        let wanted = expected(wanted);
        assert!((loss - wanted).abs() < 1e-6, "{loss} {wanted}");
    }

    #[test]
    fn one_class_each() {
        assert_loss(
            targets([2, 0], None),
            0.0,
            [[0.0, 0.0, 1.0], [1.0, 0.0, 0.0]],
        );
    }

    #[test]
    fn smoothing_spreads_a_share_evenly() {
        let (most, rest) = (0.7 + 0.1, 0.1);
        assert_loss(
            targets([2, 0], None),
            0.3,
            [[rest, rest, most], [most, rest, rest]],
        );
    }

    #[test]
    fn a_mixed_image_counts_for_both_classes() {
        let mix = || {
            Some(Mix {
                labels: labels([1, 0]),
                weights: Tensor::from_floats([0.75, 0.4], &Device::flex()),
            })
        };
        let unsmoothed = [[0.0, 0.25, 0.75], [1.0, 0.0, 0.0]];
        assert_loss(targets([2, 0], mix()), 0.0, unsmoothed);
        let smoothed = unsmoothed.map(|row| row.map(|share| 0.9 * share + 0.1 / 3.0));
        assert_loss(targets([2, 0], mix()), 0.1, smoothed);
    }
}
