//! The training objective of a classifier.

use burn::tensor::activation::log_softmax;
use burn::tensor::{Int, Tensor};

/// Cross-entropy of every sample: `-log softmax(logits)[label]`.
///
/// `logits` is \[samples, classes\], `labels` \[samples\]; the result \[samples\].
pub fn cross_entropy(logits: Tensor<2>, labels: Tensor<1, Int>) -> Tensor<1> {
    let picked = log_softmax(logits, 1).gather(1, labels.unsqueeze_dim::<2>(1));
    picked.squeeze_dim::<1>(1).neg()
}

#[cfg(test)]
mod tests {
    use super::*;
    use burn::tensor::Device;

    #[test]
    fn is_minus_the_log_of_the_probability() {
        let device = Device::flex();
        let logits = Tensor::<2>::from_floats([[0.0, 0.0], [1.0, 3.0], [500.0, -500.0]], &device);
        let labels = Tensor::<1, Int>::from_ints([1, 0, 1], &device);
        let losses: Vec<f32> = cross_entropy(logits, labels)
            .into_data()
            .try_to_vec()
            .unwrap();
        let wanted = [2f32.ln(), (1.0 + 2f32.exp()).ln(), 1000.0];
        for (loss, wanted) in losses.iter().zip(wanted) {
            assert!((loss - wanted).abs() <= 1e-5 * wanted, "{loss} {wanted}");
        }
    }
}
