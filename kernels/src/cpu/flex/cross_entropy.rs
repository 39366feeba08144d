//! Mean cross-entropy of softmax against classes. It computes the gradient in the forward pass.

use std::sync::OnceLock;

use burn::backend::flex::FlexTensor;
use burn::tensor::{Shape, Tensor};

use super::conv::pixels;
use super::operation::{Operation, Saved, To, apply, exactly};
use super::tensor::{filled, numbers};
use crate::KernelError;
use crate::cpu::Kernels;

/// Computes the mean cross-entropy with label smoothing.
///
/// It is the mean over rows of `-log softmax(logits)[class]`, where a share `smoothing` of each
/// class is spread evenly over all classes. `logits` is \[rows, classes\]; the result has one
/// element.
///
/// # Panics
///
/// Panics unless `classes` has one valid class per row.
pub fn cross_entropy(logits: Tensor<2>, classes: Vec<u32>, smoothing: f64) -> Tensor<1> {
    let operation = CrossEntropy {
        classes,
        smoothing: smoothing as f32,
        gradient: OnceLock::new(),
    };
    apply(operation, logits.into_dispatch(), vec![])
}

#[derive(Debug)]
struct CrossEntropy {
    classes: Vec<u32>,
    smoothing: f32,
    /// The gradient of each row's own loss.
    gradient: OnceLock<FlexTensor>,
}

impl Operation for CrossEntropy {
    fn forward(&self, kernels: &Kernels, inputs: &[FlexTensor]) -> Result<FlexTensor, KernelError> {
        let [logits] = exactly(inputs)?;
        let rows = pixels(logits);
        let mut losses = vec![0.0; rows.rows];
        let gradient = filled(logits.layout().shape().clone(), |gradient| {
            let (logits, smoothing) = (numbers(logits)?, self.smoothing);
            kernels.cross_entropy(
                rows,
                smoothing,
                logits,
                &self.classes,
                &mut losses,
                gradient,
            )
        })?;
        let _ = self.gradient.set(gradient);
        filled(Shape::new([1]), |mean| {
            mean.fill(losses.iter().sum::<f32>() / rows.rows as f32);
            Ok(())
        })
    }

    fn backward(&self, _: Saved, dy: FlexTensor, to: &mut To<'_>) -> Result<(), KernelError> {
        let own = self.gradient.get().ok_or(KernelError::Storage)?;
        let of_mean = numbers(&dy)?.first().copied().unwrap_or_default();
        let share = of_mean / pixels(own).rows as f32;
        to.fill(0, own.layout().shape().clone(), |scaled| {
            let pairs = scaled.iter_mut().zip(numbers(own)?);
            pairs.for_each(|(to, value)| *to = value * share);
            Ok(())
        })
    }
}
