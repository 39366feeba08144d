//! Cross-entropies that count tokens or pixels instead of batches.

use burn::tensor::activation::log_softmax;
use burn::tensor::{FloatDType, Int, Tensor};
use kernels::ops;

/// Cross-entropy of each row, in f32: `-log softmax(logits)[class]`, \[rows\].
///
/// `logits` is \[rows, classes\] of any float type, `classes` \[rows\].
pub fn row_losses(logits: Tensor<2>, classes: Tensor<1, Int>) -> Tensor<1> {
    let log_probabilities = log_softmax(logits.cast(FloatDType::F32), 1);
    let picked = log_probabilities.gather(1, classes.unsqueeze_dim::<2>(1));
    picked.squeeze_dim::<1>(1).neg()
}

/// Sum of the cross-entropies of the rows that count: one element in f32.
///
/// `counts` is 1 for each row that counts and 0 for the others, \[rows\]; `None` if all do.
pub fn summed_cross_entropy(
    logits: Tensor<2>,
    classes: Tensor<1, Int>,
    counts: Option<Tensor<1>>,
) -> Tensor<1> {
    let Some(counts) = counts else {
        let [rows, _] = logits.dims();
        return ops::cross_entropy(logits, classes, None, 0.0) * rows as f64;
    };
    // In a fixed order: `Tensor::sum` adds atomically on CUDA.
    (row_losses(logits, classes) * counts).sum_dim(0)
}

#[cfg(test)]
mod tests {
    use burn::tensor::Device;

    use super::*;

    #[test]
    fn only_rows_that_count_are_summed() {
        let device = Device::flex();
        let logits = Tensor::from_floats([[0.5, -1.0, 2.0], [1.0, 0.0, 0.25]], &device);
        let classes = || Tensor::from_ints([2, 0], &device);
        let each: Vec<f32> = row_losses(Tensor::clone(&logits), classes())
            .into_data()
            .try_to_vec()
            .unwrap();
        let sum = |counts| -> f32 {
            summed_cross_entropy(Tensor::clone(&logits), classes(), counts).into_scalar()
        };
        let own = 2f32 - (0.5f32.exp() + (-1f32).exp() + 2f32.exp()).ln();
        assert!((each[0] + own).abs() < 1e-6, "{each:?}");
        assert!((sum(None) - each[0] - each[1]).abs() < 1e-6);
        let second = Tensor::from_floats([0.0, 1.0], &device);
        assert!((sum(Some(second)) - each[1]).abs() < 1e-6);
    }
}
