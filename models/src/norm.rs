//! Normalizations that compute in `f32` for every precision of the model, and a batch normalization
//! with PyTorch's running statistics.
//!
//! Burn's batch normalization keeps the biased variance of each batch and PyTorch's the unbiased
//! one, so weights that move between the two would be evaluated differently. In mixed precision
//! Burn's layers compute in the low type.

use burn::module::{Module, Param, RunningState};
use burn::nn::Initializer;
use burn::tensor::{Device, FloatDType, Tensor};
use burn_dist::autograd::{full_precision, sum_over_ranks, sums_over_ranks};
use kernels::ops::{self, BatchMoments, Layout, ThenNorm};

use crate::layers::read;

const EPSILON: f64 = 1e-5;
const MOMENTUM: f64 = 0.1;

/// PyTorch's `nn.BatchNorm2d` with its defaults and parameter names.
///
/// ε is 1e-5, and running statistics take a tenth of each batch's mean and unbiased variance. Ioffe
/// & Szegedy 2015, <https://arxiv.org/abs/1502.03167>.
#[derive(Module, Debug)]
pub struct BatchNorm2d {
    /// Scale of each channel, \[channels\].
    pub weight: Param<Tensor<1>>,
    /// Offset of each channel, \[channels\].
    pub bias: Param<Tensor<1>>,
    /// Mean of each channel over the batches seen, \[channels\].
    pub running_mean: RunningState<Tensor<1>>,
    /// Unbiased variance of each channel over the batches seen, \[channels\].
    pub running_var: RunningState<Tensor<1>>,
}

impl BatchNorm2d {
    /// Creates a layer for `channels` channels: scale 1, offset 0, mean 0, variance 1.
    pub fn new(channels: usize, device: &Device) -> Self {
        Self {
            weight: Initializer::Ones.init([channels], device),
            bias: Initializer::Zeros.init([channels], device),
            running_mean: RunningState::new(Tensor::zeros([channels], device)),
            running_var: RunningState::new(Tensor::ones([channels], device)),
        }
    }

    /// Normalises `x`, \[batch, channels, height, width\], and returns its type; computes in `f32`.
    ///
    /// On an autodiff device it uses the statistics of the batch and updates the running ones.
    /// Elsewhere it uses the running statistics.
    pub fn forward(&self, x: Tensor<4>) -> Tensor<4> {
        self.forward_then(x, Layout::ChannelsFirst, ThenNorm::default())
    }

    /// Normalises in a layout, with the operations that follow.
    pub(crate) fn forward_then(&self, x: Tensor<4>, layout: Layout, then: ThenNorm) -> Tensor<4> {
        let device = x.device();
        let channel = match layout {
            Layout::ChannelsFirst => 1,
            Layout::ChannelsLast => 3,
        };
        if device.is_autodiff() && sums_over_ranks() {
            let dtype: FloatDType = x.dtype().into();
            let x = x.cast(FloatDType::F32);
            let out = full_precision(|| self.train_together(x, channel));
            return ops::finish_norm(out.cast(dtype), then);
        }
        let parameters = [read(&self.weight), read(&self.bias)];
        if !device.is_autodiff() {
            let state = |state: &RunningState<Tensor<1>>| state.value().to_device(&device);
            let moments = [state(&self.running_mean), state(&self.running_var)];
            return ops::batch_norm(x, parameters, moments, EPSILON, layout, then);
        }
        let values = x.shape().num_elements() / x.dims()[channel].max(1);
        let (out, moments) = ops::batch_norm_train(x, parameters, EPSILON, layout, then);
        self.remember(values, &moments);
        out
    }

    /// Updates the running statistics with the moments of `values` values.
    fn remember(&self, values: usize, moments: &BatchMoments) {
        let states = [&self.running_mean, &self.running_var];
        let old = states.map(RunningState::value_sync);
        let new = moments.running(old, MOMENTUM, unbias(values));
        for (state, new) in states.into_iter().zip(new) {
            state.update(new);
        }
    }

    /// Normalises by the statistics of all ranks' batches together. `x` is in `f32`, with the
    /// channels in dimension `channel`.
    ///
    /// Squares are summed around the running mean, which is the same on all ranks and near the
    /// batch's. Around zero the sums would lose the digits of a variance that is small beside the
    /// mean.
    fn train_together(&self, x: Tensor<4>, channel: usize) -> Tensor<4> {
        let (dims, device) = (x.dims(), x.device());
        let channels = dims[channel];
        let count = x.shape().num_elements() / channels.max(1);
        let mut shape = [1; 4];
        shape[channel] = channels;
        let wide = |values: Tensor<1>| values.reshape(shape);
        let sum = |values: Tensor<4>| -> Tensor<1> {
            let others = (0..4).filter(|dim| *dim != channel);
            let sum = others.fold(values, |sum, dim| sum.sum_dim(dim));
            sum.reshape([channels])
        };
        let pivot = self.running_mean.value_sync().detach().to_device(&device);
        let x = x - wide(pivot.clone());
        let own = vec![
            sum(x.clone()),
            sum(x.clone().square()),
            Tensor::full([1], count as f64, &device),
        ];
        let all = sum_over_ranks(Tensor::cat(own, 0));
        let part = |from: usize, to: usize| all.clone().slice(from..to);
        let values = part(2 * channels, 2 * channels + 1).detach();
        let mean = part(0, channels) / values.clone();
        let square = part(channels, 2 * channels) / values.clone();
        let variance = (square - mean.clone().square()).clamp_min(0.0);
        let values = values.into_scalar::<f32>() as usize;
        let moments = BatchMoments::new(mean.clone().detach() + pivot, variance.clone().detach());
        self.remember(values, &moments);
        let scale = self.weight.val() / (variance + EPSILON).sqrt();
        (x - wide(mean)) * wide(scale) + wide(self.bias.val())
    }
}

/// Factor that corrects a variance that was divided by `values`. A single value has nothing to
/// correct.
fn unbias(values: usize) -> f64 {
    values as f64 / (values as f64 - 1.0).max(1.0)
}

/// Layer normalization over the last dimension, with the parameter names of Burn's layer.
///
/// Ba et al. 2016, <https://arxiv.org/abs/1607.06450>.
#[derive(Module, Debug)]
pub struct LayerNorm {
    /// Scale of each feature, \[features\].
    pub gamma: Param<Tensor<1>>,
    /// Offset of each feature, \[features\].
    pub beta: Param<Tensor<1>>,
    epsilon: f64,
}

impl LayerNorm {
    /// Creates a layer for `features` features: scale 1, offset 0.
    pub fn new(features: usize, epsilon: f64, device: &Device) -> Self {
        Self {
            gamma: Initializer::Ones.init([features], device),
            beta: Initializer::Zeros.init([features], device),
            epsilon,
        }
    }

    /// Normalises `x`, \[…, features\]. Computes in `f32` and returns the type of `x`.
    pub fn forward<const D: usize>(&self, x: Tensor<D>) -> Tensor<D> {
        ops::layer_norm(x, [read(&self.gamma), read(&self.beta)], self.epsilon)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn values(tensor: Tensor<1>) -> Vec<f32> {
        tensor.into_data().try_to_vec().unwrap()
    }

    #[test]
    fn running_variance_is_unbiased() {
        let device = Device::flex().autodiff();
        let norm = BatchNorm2d::new(1, &device);
        let x = Tensor::<4>::from_floats([[[[1.0, 3.0]]], [[[5.0, 7.0]]]], &device);
        let out: Vec<f32> = norm.forward(x).into_data().try_to_vec().unwrap();
        // The batch itself is normalised by its biased variance, 5.
        assert!((out[0] + 3.0 / 5f32.sqrt()).abs() < 1e-4, "{out:?}");
        let mean = values(norm.running_mean.value_sync());
        let variance = values(norm.running_var.value_sync());
        assert!((mean[0] - 0.4).abs() < 1e-6, "{mean:?}");
        assert!(
            (variance[0] - (0.9 + 0.1 * 20.0 / 3.0)).abs() < 1e-5,
            "{variance:?}"
        );
    }

    #[test]
    fn low_precision_is_normalised_in_f32() {
        let device = Device::flex().autodiff();
        // In f16 the squares would overflow, and in bf16 the mean would lose the differences.
        let values = [1000.0f32, 1002.0, 1004.0, 1006.0];
        let x = Tensor::<4>::from_floats([[[values]]], &device);
        for dtype in [FloatDType::F16, FloatDType::F32] {
            let batch = BatchNorm2d::new(1, &device);
            let layer = LayerNorm::new(4, 1e-6, &device);
            for out in [
                batch.forward(x.clone().cast(dtype)),
                layer.forward(x.clone().cast(dtype)),
            ] {
                assert_eq!(FloatDType::from(out.dtype()), dtype);
                let out: Vec<f32> = out.into_data().convert::<f32>().try_to_vec().unwrap();
                assert!((out[3] - 3.0 / 5f32.sqrt()).abs() < 1e-3, "{out:?}");
            }
            let variance = values_of(&batch);
            assert!((variance - (0.9 + 0.1 * 20.0 / 3.0)).abs() < 1e-4);
        }
    }

    fn values_of(norm: &BatchNorm2d) -> f32 {
        values(norm.running_var.value_sync())[0]
    }

    #[test]
    fn evaluation_uses_what_was_remembered() {
        let device = Device::flex();
        let norm = BatchNorm2d::new(2, &device);
        let x = Tensor::<4>::from_floats([[[[2.0]], [[-4.0]]]], &device);
        let out: Vec<f32> = norm.forward(x).into_data().try_to_vec().unwrap();
        assert!((out[0] - 2.0).abs() < 1e-4 && (out[1] + 4.0).abs() < 1e-4);
    }
}
