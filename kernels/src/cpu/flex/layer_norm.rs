//! Layer normalization over the last dimension.

use burn::backend::flex::FlexTensor;
use burn::tensor::{Shape, Tensor};

use super::conv::pixels;
use super::operation::{Operation, Saved, To, apply, exactly};
use super::tensor::{filled, numbers};
use crate::KernelError;
use crate::cpu::Kernels;

/// Computes `(x − mean) / √(variance + epsilon) · weight + bias` of each row.
///
/// `x` is \[…, features\], weight and bias are \[features\].
///
/// # Panics
///
/// Panics if the shapes do not match, as Burn's own operations do.
pub fn layer_norm<const D: usize>(
    x: Tensor<D>,
    weight: Tensor<1>,
    bias: Tensor<1>,
    epsilon: f64,
) -> Tensor<D> {
    let operation = LayerNorm {
        epsilon: epsilon as f32,
    };
    let others = vec![weight.into_dispatch(), bias.into_dispatch()];
    apply(operation, x.into_dispatch(), others)
}

#[derive(Debug)]
struct LayerNorm {
    epsilon: f32,
}

impl Operation for LayerNorm {
    fn forward(&self, kernels: &Kernels, inputs: &[FlexTensor]) -> Result<FlexTensor, KernelError> {
        let [x, weight, bias] = exactly(inputs)?;
        let parameters = [numbers(weight)?, numbers(bias)?];
        filled(x.layout().shape().clone(), |out| {
            kernels.layer_norm(pixels(x), self.epsilon, numbers(x)?, parameters, out)
        })
    }

    fn backward(&self, saved: Saved, dy: FlexTensor, to: &mut To<'_>) -> Result<(), KernelError> {
        let kernels = to.kernels;
        let (x, weight) = (saved.input(0)?, saved.input(1)?);
        let (rows, epsilon) = (pixels(x), self.epsilon);
        let mut sums = [vec![0.0; rows.columns], vec![0.0; rows.columns]];
        let dx = filled(x.layout().shape().clone(), |dx| {
            let dy = numbers(&dy)?;
            let [dw, db] = sums.each_mut().map(Vec::as_mut_slice);
            let (x, weight) = (numbers(x)?, numbers(weight)?);
            kernels.layer_norm_gradient(rows, epsilon, x, weight, dy, [dx, dw, db])
        })?;
        for (index, sums) in (1..).zip(&sums) {
            to.fill(index, Shape::new([rows.columns]), |to| {
                to.copy_from_slice(sums);
                Ok(())
            })?;
        }
        to.give(0, dx)
    }

    fn reads(&self, index: usize) -> bool {
        index < 2
    }

    fn is_cheap(&self) -> bool {
        true
    }
}
