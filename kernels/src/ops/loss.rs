//! The loss of a classifier.

use burn::tensor::activation::log_softmax;
use burn::tensor::{FloatDType, Int, Tensor};

use crate::gpu;
use crate::policy::{Engine, engine};

/// Computes the mean over rows of the cross-entropy of softmax against classes, of which a share of
/// `smoothing` (0 to 1) is spread evenly over all (Szegedy et al. 2016,
/// <https://arxiv.org/abs/1512.00567>), as PyTorch's `label_smoothing` does it. With `other`, rows
/// are of two classes each (Zhang et al. 2018, <https://arxiv.org/abs/1710.09412>): of that in
/// `classes` by the weight in `other`, and of that in `other` by the rest.
///
/// `logits` is \[rows, classes\] of any float type, all else \[rows\]. The result has one element,
/// in f32, in which it is computed. On the CPU it is Burn's.
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
/// When there is not one class per row, as Burn's own operations do.
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
        // The mean over samples and classes is that over samples of the evenly spread label's loss.
        share => {
            let of_classes = log_probabilities.mean_dim(1).squeeze_dim::<1>(1);
            loss * (1.0 - share) - mean(of_classes) * share
        }
    }
}

/// The mean in an order of its own: `Tensor::mean` adds atomically on CUDA, so that a run that is
/// repeated may report another loss.
fn mean(values: Tensor<1>) -> Tensor<1> {
    values.mean_dim(0)
}

/// How surprised each row of log-probabilities is by its class.
fn surprise(log_probabilities: &Tensor<2>, classes: Tensor<1, Int>) -> Tensor<1> {
    let picked = log_probabilities
        .clone()
        .gather(1, classes.unsqueeze_dim::<2>(1));
    picked.squeeze_dim::<1>(1).neg()
}
