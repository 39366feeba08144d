//! Normalizations. They compute in f32 for every input type.

use burn::tensor::{FloatDType, Tensor, module};

pub use crate::gpu::ThenNorm;

use super::{add, dropout, f32, in_f32, relu};
use crate::cpu::flex;
use crate::gpu;
use crate::policy::{Engine, Layout, engine};

/// Normalises each row of `x` by its own mean and variance.
///
/// `x` is \[…, features\]; `weight` and `bias` (`parameters`) are \[features\]. Ba et al. 2016,
/// <https://arxiv.org/abs/1607.06450>.
///
/// ```
/// use burn::tensor::{Device, Tensor};
///
/// let device = Device::flex();
/// let parameters = [Tensor::ones([4], &device), Tensor::zeros([4], &device)];
/// let y = kernels::ops::layer_norm(Tensor::<2>::ones([2, 4], &device), parameters, 1e-6);
/// assert_eq!(y.abs().max().into_scalar::<f32>(), 0.0);
/// ```
///
/// # Panics
/// Panics if the shapes do not match, as Burn's own operations do.
pub fn layer_norm<const D: usize>(
    x: Tensor<D>,
    parameters: [Tensor<1>; 2],
    epsilon: f64,
) -> Tensor<D> {
    let [weight, bias] = parameters.map(f32);
    match engine(&x) {
        Engine::Cpu => flex::layer_norm(x, weight, bias, epsilon),
        Engine::Gpu => gpu::layer_norm(x, [weight, bias], epsilon),
        Engine::Burn => in_f32(x, |x| module::layer_norm(x, weight, Some(bias), epsilon)),
    }
}

/// Mean and variance of each channel in a batch, in f32 and without autodiff.
#[derive(Debug)]
pub struct BatchMoments(Moments);

#[derive(Debug)]
enum Moments {
    Tensors(Box<[Tensor<1>; 2]>),
    Gpu(Box<gpu::BatchMoments>),
}

impl BatchMoments {
    /// Takes mean and biased variance of the batch, \[channels\] each.
    pub fn new(mean: Tensor<1>, variance: Tensor<1>) -> Self {
        Self(Moments::Tensors(Box::new(
            [mean, variance].map(Tensor::without_autodiff),
        )))
    }

    /// The means, \[channels\].
    pub fn mean(&self) -> Tensor<1> {
        match &self.0 {
            Moments::Tensors(moments) => moments[0].clone(),
            Moments::Gpu(moments) => gpu::BatchMoments::mean(moments),
        }
    }

    /// The biased variances (divided by the number of values), \[channels\].
    pub fn variance(&self) -> Tensor<1> {
        match &self.0 {
            Moments::Tensors(moments) => moments[1].clone(),
            Moments::Gpu(moments) => gpu::BatchMoments::variance(moments),
        }
    }

    /// Updates a running mean and variance.
    ///
    /// The result is `1 - momentum` of `old` plus `momentum` of these, with the variances times
    /// `unbias`.
    pub fn running(&self, old: [Tensor<1>; 2], momentum: f64, unbias: f64) -> [Tensor<1>; 2] {
        let [mean, variance] = old.map(Tensor::without_autodiff);
        match &self.0 {
            Moments::Gpu(moments) => {
                gpu::BatchMoments::running(moments, [mean, variance], momentum, unbias)
            }
            Moments::Tensors(seen) => {
                let [new_mean, new_variance] = *seen.clone();
                let blend = |old: Tensor<1>, new: Tensor<1>, factor: f64| {
                    old.to_device(&new.device()) * (1.0 - momentum) + new * (momentum * factor)
                };
                [
                    blend(mean, new_mean, 1.0),
                    blend(variance, new_variance, unbias),
                ]
            }
        }
    }
}

/// Normalises images by mean and variance of this batch, and returns both.
///
/// `weight` and `bias` (`parameters`) are \[channels\]. GPUs compute the operations in `then` in
/// the same kernel, a CPU only ReLU. Ioffe & Szegedy 2015, <https://arxiv.org/abs/1502.03167>.
///
/// ```
/// use burn::tensor::{Device, Tensor};
/// use kernels::ops::{Layout, ThenNorm, batch_norm_train};
///
/// let device = Device::flex();
/// let x = Tensor::from_floats([[[[1.0, 3.0]]], [[[5.0, 7.0]]]], &device);
/// let parameters = [Tensor::ones([1], &device), Tensor::zeros([1], &device)];
/// let then = ThenNorm { relu: true, ..ThenNorm::default() };
/// let (y, moments) = batch_norm_train(x, parameters, 1e-5, Layout::ChannelsFirst, then);
/// assert_eq!(y.dims(), [2, 1, 1, 2]);
/// assert_eq!(moments.mean().into_scalar::<f32>(), 4.0);
/// assert_eq!(moments.variance().into_scalar::<f32>(), 5.0);
/// ```
///
/// # Panics
/// Panics if the shapes do not match, as Burn's own operations do.
pub fn batch_norm_train(
    x: Tensor<4>,
    parameters: [Tensor<1>; 2],
    epsilon: f64,
    layout: Layout,
    then: ThenNorm,
) -> (Tensor<4>, BatchMoments) {
    let parameters = parameters.map(f32);
    match engine(&x) {
        Engine::Cpu => {
            let (device, x) = (x.device().inner(), layout.to_channels_last(x));
            let (out, moments) = flex::batch_norm_train(x, parameters, epsilon, then.relu);
            let seen = |values: Vec<f32>| Tensor::from_floats(values.as_slice(), &device);
            let moments = BatchMoments::new(seen(moments.mean), seen(moments.variance));
            (after_cpu(out, layout, then), moments)
        }
        Engine::Gpu => {
            let (x, then) = (layout.to_channels_first(x), first(then, layout));
            let (out, moments) = gpu::batch_norm_train(x, parameters, epsilon, then);
            (
                layout.of_channels_first(out),
                BatchMoments(Moments::Gpu(Box::new(moments))),
            )
        }
        Engine::Burn => {
            let dtype: FloatDType = x.dtype().into();
            let [weight, bias] = parameters;
            let x = f32(layout.to_channels_first(x));
            let result = module::batch_norm_train(x, weight, bias, epsilon);
            let out = layout.of_channels_first(result.output.cast(dtype));
            let moments = BatchMoments::new(result.mean, result.variance);
            (finish_norm(out, then), moments)
        }
    }
}

/// Normalises images by a given mean and variance, as in evaluation.
///
/// `moments` are mean and variance, \[channels\] each; otherwise as [`batch_norm_train`]. On a GPU
/// Burn computes it if it must be differentiable.
///
/// ```
/// use burn::tensor::{Device, Tensor};
/// use kernels::ops::{Layout, ThenNorm, batch_norm};
///
/// let device = Device::flex();
/// let (ones, zeros) = (Tensor::ones([3], &device), Tensor::zeros([3], &device));
/// let x = Tensor::ones([2, 3, 4, 4], &device);
/// let (parameters, moments) = ([ones.clone(), zeros.clone()], [zeros, ones]);
/// let y = batch_norm(x, parameters, moments, 0.0, Layout::ChannelsFirst, ThenNorm::default());
/// assert_eq!(y.min().into_scalar::<f32>(), 1.0);
/// ```
///
/// # Panics
/// Panics if the shapes do not match, as Burn's own operations do.
pub fn batch_norm(
    x: Tensor<4>,
    parameters: [Tensor<1>; 2],
    moments: [Tensor<1>; 2],
    epsilon: f64,
    layout: Layout,
    then: ThenNorm,
) -> Tensor<4> {
    let parameters = parameters.map(f32);
    match engine(&x) {
        Engine::Cpu => {
            let values = |moments: Tensor<1>| moments.to_data().convert::<f32>().iter().collect();
            let [mean, variance] = moments.map(values);
            let moments = flex::BatchMoments { mean, variance };
            let x = layout.to_channels_last(x);
            let out = flex::batch_norm(x, parameters, moments, epsilon, then.relu);
            after_cpu(out, layout, then)
        }
        Engine::Gpu if !x.device().is_autodiff() => {
            let (x, then) = (layout.to_channels_first(x), first(then, layout));
            layout.of_channels_first(gpu::batch_norm(x, parameters, moments, epsilon, then))
        }
        Engine::Gpu | Engine::Burn => {
            let ([weight, bias], [mean, variance]) = (parameters, moments.map(f32));
            let out = in_f32(layout.to_channels_first(x), |x| {
                module::batch_norm(x, weight, bias, mean, variance, epsilon)
            });
            finish_norm(layout.of_channels_first(out), then)
        }
    }
}

/// Computes the operations after a normalization that a model computes itself.
///
/// ```
/// use burn::tensor::{Device, Tensor};
/// use kernels::ops::{ThenNorm, finish_norm};
///
/// let x = Tensor::<4>::ones([1, 2, 3, 3], &Device::flex());
/// let then = ThenNorm { plus: Some(x.clone()), ..ThenNorm::default() };
/// assert_eq!(finish_norm(x, then).max().into_scalar::<f32>(), 2.0);
/// ```
pub fn finish_norm(x: Tensor<4>, then: ThenNorm) -> Tensor<4> {
    let x = if then.relu { relu(x) } else { x };
    let x = dropout(x, then.drop);
    match then.plus {
        Some(plus) => add(x, plus),
        None => x,
    }
}

/// The operations that remain after the CPU kernel.
fn after_cpu(out: Tensor<4>, layout: Layout, then: ThenNorm) -> Tensor<4> {
    let then = ThenNorm {
        relu: false,
        ..then
    };
    finish_norm(layout.of_channels_last(out), then)
}

/// Converts the operands to channels first.
fn first(then: ThenNorm, layout: Layout) -> ThenNorm {
    ThenNorm {
        plus: then.plus.map(|plus| layout.to_channels_first(plus)),
        ..then
    }
}
