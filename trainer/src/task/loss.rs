//! Cross-entropies that count tokens or pixels instead of batches.

use burn::tensor::activation::log_softmax;
use burn::tensor::{Bool, Device, FloatDType, Int, Tensor, TensorData};
use kernels::ops;

use super::Loss;

/// Cross-entropy of each row, in f32: `-log softmax(logits)[class]`, \[rows\].
///
/// `logits` is \[rows, classes\] of any float type, `classes` \[rows\].
pub fn row_losses(logits: Tensor<2>, classes: Tensor<1, Int>) -> Tensor<1> {
    let log_probabilities = log_softmax(logits.cast(FloatDType::F32), 1);
    let picked = log_probabilities.gather(1, classes.unsqueeze_dim::<2>(1));
    picked.squeeze_dim::<1>(1).neg()
}

/// Classes of rows on a device. Not all rows need to count.
pub struct RowTargets {
    /// A class for each row, counted or not, \[rows\].
    pub classes: Tensor<1, Int>,
    /// 1 for each row that counts, else 0, \[rows\]; `None` if all do.
    mask: Option<Tensor<1>>,
    /// Number of rows that count.
    counted: usize,
}

impl RowTargets {
    /// Puts `classes` on `device`. `counts` says for each whether it counts.
    pub fn new(classes: Vec<i32>, counts: Vec<bool>, device: &Device) -> Self {
        let rows = counts.len();
        let counted = counts.iter().filter(|counts| **counts).count();
        let mask = (counted < rows).then(|| {
            let counts = TensorData::new(counts, [rows]);
            Tensor::<1, Bool>::from_data(counts, device).float()
        });
        Self {
            classes: Tensor::from_data(TensorData::new(classes, [rows]), device),
            mask,
            counted,
        }
    }

    /// The sum of the cross-entropies of the rows that count, in f32, and their number.
    ///
    /// `logits` is \[rows, classes\] of any float type.
    pub fn loss(self, logits: Tensor<2>) -> Loss {
        let value = match self.mask {
            None => {
                let [rows, _] = logits.dims();
                ops::cross_entropy(logits, self.classes, None, 0.0) * rows as f64
            }
            // In a fixed order: `Tensor::sum` adds atomically on CUDA.
            Some(mask) => (row_losses(logits, self.classes) * mask).sum_dim(0),
        };
        Loss {
            value,
            weight: self.counted as f64,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_rows_that_count_are_summed() {
        let device = Device::flex();
        let logits = Tensor::from_floats([[0.5, -1.0, 2.0], [1.0, 0.0, 0.25]], &device);
        let classes = Tensor::from_ints([2, 0], &device);
        let each: Vec<f32> = row_losses(Tensor::clone(&logits), classes)
            .into_data()
            .try_to_vec()
            .unwrap();
        let sum = |counts: [bool; 2]| {
            let targets = RowTargets::new(vec![2, 0], counts.into(), &device);
            let loss = targets.loss(Tensor::clone(&logits));
            (loss.value.into_scalar::<f32>(), loss.weight)
        };
        let own = 2f32 - (0.5f32.exp() + (-1f32).exp() + 2f32.exp()).ln();
        assert!((each[0] + own).abs() < 1e-6, "{each:?}");
        let (all, weight) = sum([true, true]);
        assert!((all - each[0] - each[1]).abs() < 1e-6 && weight == 2.0);
        let (second, weight) = sum([false, true]);
        assert!((second - each[1]).abs() < 1e-6 && weight == 1.0);
    }
}
