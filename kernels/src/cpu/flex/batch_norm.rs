//! Batch normalization of channels-last data, with an optional ReLU.

use std::sync::{Arc, OnceLock};

use burn::backend::flex::FlexTensor;
use burn::tensor::{Shape, Tensor};

use super::conv::pixels;
use super::operation::{Operation, Saved, To, apply, exactly};
use super::tensor::{filled, numbers};
use crate::KernelError;
use crate::cpu::{BatchNorm, BatchNormGradients, Kernels, Moments};

/// Mean and variance of each channel.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct BatchMoments {
    /// Means.
    pub mean: Vec<f32>,
    /// Variances, biased (divided by the number of values).
    pub variance: Vec<f32>,
}

/// Normalises `x` by mean and variance of this batch, and returns these too.
///
/// `x` is \[…, channels\], `weight` and `bias` are \[channels\].
///
/// # Panics
///
/// Panics if the shapes do not match, as Burn's own operations do.
pub fn batch_norm_train<const D: usize>(
    x: Tensor<D>,
    [weight, bias]: [Tensor<1>; 2],
    epsilon: f64,
    relu: bool,
) -> (Tensor<D>, BatchMoments) {
    let moments = Arc::new(OnceLock::new());
    let operation = Normalisation {
        epsilon: epsilon as f32,
        relu,
        of_batch: true,
        moments: Arc::clone(&moments),
    };
    let others = vec![weight.into_dispatch(), bias.into_dispatch()];
    let out = apply(operation, x.into_dispatch(), others);
    // The operation has been computed, so the moments are set.
    (out, moments.get().cloned().unwrap_or_default())
}

/// Normalises `x` by given `moments`, as in evaluation. `x` is \[…, channels\].
///
/// # Panics
///
/// Panics if the shapes do not match, as Burn's own operations do.
pub fn batch_norm<const D: usize>(
    x: Tensor<D>,
    [weight, bias]: [Tensor<1>; 2],
    moments: BatchMoments,
    epsilon: f64,
    relu: bool,
) -> Tensor<D> {
    let operation = Normalisation {
        epsilon: epsilon as f32,
        relu,
        of_batch: false,
        moments: Arc::new(OnceLock::from(moments)),
    };
    let others = vec![weight.into_dispatch(), bias.into_dispatch()];
    apply(operation, x.into_dispatch(), others)
}

#[derive(Debug)]
struct Normalisation {
    epsilon: f32,
    relu: bool,
    of_batch: bool,
    /// Set by the forward pass if the moments are those of the batch.
    moments: Arc<OnceLock<BatchMoments>>,
}

impl Normalisation {
    fn norm(&self, x: &FlexTensor) -> BatchNorm {
        BatchNorm {
            shape: pixels(x),
            epsilon: self.epsilon,
            relu: self.relu,
        }
    }

    fn moments(&self) -> Result<Moments<'_>, KernelError> {
        let moments = self.moments.get().ok_or(KernelError::Storage)?;
        Ok(Moments {
            mean: &moments.mean,
            variance: &moments.variance,
            of_batch: self.of_batch,
        })
    }
}

impl Operation for Normalisation {
    fn forward(&self, kernels: &Kernels, inputs: &[FlexTensor]) -> Result<FlexTensor, KernelError> {
        let [x, weight, bias] = exactly(inputs)?;
        let norm = self.norm(x);
        // Already set if a result is computed again.
        if self.moments.get().is_none() {
            let mut mean = vec![0.0; norm.shape.columns];
            let mut variance = mean.clone();
            kernels.batch_norm_moments(norm.shape, numbers(x)?, &mut mean, &mut variance)?;
            let _ = self.moments.set(BatchMoments { mean, variance });
        }
        let (parameters, moments) = ([numbers(weight)?, numbers(bias)?], self.moments()?);
        filled(x.layout().shape().clone(), |out| {
            kernels.batch_norm(&norm, numbers(x)?, parameters, &moments, out)
        })
    }

    fn backward(&self, saved: Saved, dy: FlexTensor, to: &mut To<'_>) -> Result<(), KernelError> {
        let kernels = to.kernels;
        let (x, weight, bias) = (saved.input(0)?, saved.input(1)?, saved.input(2)?);
        let (norm, moments) = (self.norm(x), self.moments()?);
        let parameters = [numbers(weight)?, numbers(bias)?];
        let mut sums = [vec![0.0; norm.shape.columns], vec![0.0; norm.shape.columns]];
        let dx = filled(x.layout().shape().clone(), |dx| {
            let [weight, bias] = &mut sums;
            let result = BatchNormGradients {
                input: dx,
                more: None,
                weight,
                bias,
            };
            let (x, dy) = (numbers(x)?, numbers(&dy)?);
            kernels.batch_norm_gradient(&norm, x, parameters, &moments, dy, result)
        })?;
        for (index, sums) in (1..).zip(&sums) {
            to.fill(index, Shape::new([norm.shape.columns]), |to| {
                to.copy_from_slice(sums);
                Ok(())
            })?;
        }
        to.give(0, dx)
    }

    fn reads(&self, _index: usize) -> bool {
        true
    }

    fn is_cheap(&self) -> bool {
        true
    }
}
