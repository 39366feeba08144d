//! The loss of a classifier.

use burn::tensor::activation::log_softmax;
use burn::tensor::{FloatDType, Int, Tensor};

use crate::gpu;
use crate::policy::{Engine, engine};

/// Computes the mean over rows of the cross-entropy of softmax.
///
/// `logits` is \[rows, classes\] of any float type, everything else \[rows\]. The result has one
/// element, in f32, and is computed in f32. On a CPU Burn computes it.
///
/// - `smoothing` (0 to 1) is the share of the label that is spread evenly over all classes (Szegedy
///   et al. 2016, <https://arxiv.org/abs/1512.00567>), as PyTorch's `label_smoothing`.
/// - With `other`, each row has two classes (Zhang et al. 2018,
///   <https://arxiv.org/abs/1710.09412>): the one in `classes` with the weight in `other`, and the
///   class in `other` with the rest.
///
/// ```
/// use burn::tensor::{Device, Tensor};
///
/// let device = Device::flex();
/// let (logits, classes) = (Tensor::zeros([2, 4], &device), Tensor::from_ints([3, 0], &device));
/// let loss = kernels::ops::cross_entropy(logits, classes, None, 0.0).into_scalar::<f32>();
/// assert!((loss - 4f32.ln()).abs() < 1e-6);
/// ```
///
/// # Panics
/// Panics unless there is one class per row, as Burn's own operations do.
pub fn cross_entropy(
    logits: Tensor<2>,
    classes: Tensor<1, Int>,
    other: Option<(Tensor<1, Int>, Tensor<1>)>,
    smoothing: f64,
) -> Tensor<1> {
    if engine(&logits) == Engine::Gpu {
        return gpu::cross_entropy(logits, classes, other, smoothing);
    }
    let log_probabilities = log_softmax(logits.cast(FloatDType::F32), 1);
    let mut loss = surprise(&log_probabilities, classes);
    if let Some((classes, weights)) = other {
        let other = surprise(&log_probabilities, classes);
        loss = other.clone() + (loss - other) * weights;
    }
    let loss = mean(loss);
    match smoothing {
        0.0 => loss,
        // The mean over samples and classes equals the mean over samples of the evenly spread
        // label's loss.
        share => {
            let of_classes = log_probabilities.mean_dim(1).squeeze_dim::<1>(1);
            loss * (1.0 - share) - mean(of_classes) * share
        }
    }
}

/// The mean in a fixed order. `Tensor::mean` adds atomically on CUDA, so a repeated run might
/// report another loss.
fn mean(values: Tensor<1>) -> Tensor<1> {
    values.mean_dim(0)
}

/// The negative log-probability of each row's class.
fn surprise(log_probabilities: &Tensor<2>, classes: Tensor<1, Int>) -> Tensor<1> {
    let picked = log_probabilities
        .clone()
        .gather(1, classes.unsqueeze_dim::<2>(1));
    picked.squeeze_dim::<1>(1).neg()
}
