//! Layers on GPUs: with the operations of `kernels::gpu` where these are used on the device. Each is nothing
//! elsewhere, for the caller to take Burn's.
//!
//! Parameters are read once, whatever computes with them: where they are shards, reading gathers them.

use burn::module::Param;
use burn::nn::conv::Conv2d;
use burn::nn::pool::MaxPool2d;
use burn::nn::{Dropout, Linear};
use burn::tensor::{Tensor, module, ops};
use burn_dist::autograd::full_precision;
use kernels::gpu;

use crate::layers::{added, drops, is_plain, padding};

/// Whether `x` has values, on a device that the operations are used on.
fn takes<const D: usize>(x: &Tensor<D>) -> bool {
    x.shape().num_elements() > 0 && gpu::computes_on(&x.device())
}

/// Dropout, if anything drops out.
pub(crate) fn dropout<const D: usize>(dropout: &Dropout, x: &Tensor<D>) -> Option<Tensor<D>> {
    (drops(dropout, x) && takes(x)).then(|| gpu::dropout(x.clone(), dropout.prob))
}

/// GELU with the exact normal distribution.
pub(crate) fn gelu<const D: usize>(x: &Tensor<D>) -> Option<Tensor<D>> {
    takes(x).then(|| gpu::gelu(x.clone()))
}

/// ReLU.
pub(crate) fn relu<const D: usize>(x: &Tensor<D>) -> Option<Tensor<D>> {
    takes(x).then(|| gpu::relu(x.clone()))
}

/// ReLU of `x + y`.
pub(crate) fn add_relu<const D: usize>(x: &Tensor<D>, y: &Tensor<D>) -> Option<Tensor<D>> {
    takes(x).then(|| gpu::add_relu(x.clone(), y.clone()))
}

/// Attention of as many heads among the queries, keys and values in `qkv`, \[batch, tokens, 3 · features\].
pub(crate) fn attention(qkv: &Tensor<3>, heads: usize) -> Option<Tensor<3>> {
    takes(qkv).then(|| gpu::attention(qkv.clone(), heads))
}

/// A convolution, on tensor cores if the device has them for its type, and what is added to it.
pub(crate) fn conv2d(conv: &Conv2d, x: &Tensor<4>, plus: Option<&Tensor<4>>) -> Option<Tensor<4>> {
    let padding = padding(&conv.padding).filter(|_| is_plain(conv) && takes(x))?;
    let (weight, bias) = parameters(&conv.weight, &conv.bias);
    let stride = conv.stride;
    let options = gpu::ConvOptions { stride, padding };
    Some(
        gpu::conv2d(x, &weight, bias.as_ref(), plus.cloned(), options).unwrap_or_else(|| {
            let options = ops::ConvOptions::new(stride, padding, [1, 1], 1);
            let bias = bias.map(|bias| bias.cast(x.dtype()));
            let out = module::conv2d(x.clone(), weight.cast(x.dtype()), bias, options);
            added(out, plus.cloned())
        }),
    )
}

/// A linear layer on the last dimension, on tensor cores if the device has them for its type, and what is added to it.
pub(crate) fn linear<const D: usize>(
    linear: &Linear,
    x: &Tensor<D>,
    plus: Option<&Tensor<D>>,
) -> Option<Tensor<D>> {
    if !takes(x) {
        return None;
    }
    let (weight, bias) = parameters(&linear.weight, &linear.bias);
    let own = gpu::linear(x, &weight, bias.as_ref(), plus.cloned());
    Some(own.unwrap_or_else(|| {
        let bias = bias.map(|bias| bias.cast(x.dtype()));
        let out = module::linear(x.clone(), weight.cast(x.dtype()), bias);
        added(out, plus.cloned())
    }))
}

/// Weight and bias as they are: the products round a weight themselves, and give a gradient that is not rounded;
/// their sums, to which a bias is added, are exacter than what models train in.
fn parameters<const D: usize>(
    weight: &Param<Tensor<D>>,
    bias: &Option<Param<Tensor<1>>>,
) -> (Tensor<D>, Option<Tensor<1>>) {
    full_precision(|| (weight.val(), bias.as_ref().map(Param::val)))
}

/// The mean over the first rows and columns.
pub(crate) fn mean_of(x: &Tensor<4>, part: [usize; 2]) -> Option<Tensor<2>> {
    takes(x).then(|| gpu::mean_of_pixels(x.clone(), part))?
}

/// A class token and patches at their positions.
pub(crate) fn embed(
    patches: &Tensor<3>,
    token: &Param<Tensor<3>>,
    positions: &Param<Tensor<3>>,
) -> Option<Tensor<3>> {
    if !takes(patches) {
        return None;
    }
    let (token, positions) = full_precision(|| (token.val(), positions.val()));
    Some(gpu::embed(patches.clone(), token, positions))
}

/// The maximum of a sliding window.
pub(crate) fn max_pool2d(pool: &MaxPool2d, x: &Tensor<4>) -> Option<Tensor<4>> {
    let is_plain = pool.dilation == [1, 1] && !pool.ceil_mode;
    let options = gpu::PoolOptions {
        window: pool.kernel_size,
        stride: pool.stride,
        padding: padding(&pool.padding).filter(|_| is_plain && takes(x))?,
    };
    gpu::max_pool2d(x.clone(), options)
}
