//! Layers as the reference implementations initialise them, and what they compute in `f32` whatever
//! the precision of the model is.

#[cfg(all(any(feature = "wgpu", feature = "cuda"), not(feature = "fusion")))]
use burn::module::Param;
use burn::nn::conv::{Conv2d, Conv2dConfig};
use burn::nn::pool::MaxPool2d;
use burn::nn::{Dropout, Initializer, Linear, LinearConfig, PaddingConfig2d};
use burn::tensor::activation::{self, softmax};
use burn::tensor::{Device, FloatDType, Tensor};
#[cfg(all(any(feature = "wgpu", feature = "cuda"), not(feature = "fusion")))]
use burn_dist::autograd::full_precision;

/// How the weight of a convolution is drawn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Draw {
    /// Uniform in ±1/√fan_in, as PyTorch does when nothing is said.
    Default,
    /// Normal with variance 2/fan_out (He et al. 2015, <https://arxiv.org/abs/1502.01852>), as the
    /// residual networks are initialised.
    KaimingFanOut,
}

/// A square convolution without bias whose padding keeps the size at stride 1.
pub(crate) fn conv(
    channels: [usize; 2],
    kernel: usize,
    stride: usize,
    draw: Draw,
    device: &Device,
) -> Conv2d {
    let pad = kernel / 2;
    let config = Conv2dConfig::new(channels, [kernel; 2])
        .with_stride([stride; 2])
        .with_padding(PaddingConfig2d::Explicit(pad, pad, pad, pad))
        .with_bias(false);
    match draw {
        Draw::Default => config.init(device),
        Draw::KaimingFanOut => config
            .with_initializer(Initializer::KaimingNormal {
                gain: 2f64.sqrt(),
                fan_out_only: true,
            })
            .init(device),
    }
}

/// A linear layer drawn as PyTorch does when nothing is said, uniform in ±1/√fan_in.
pub(crate) fn linear(inputs: usize, outputs: usize, device: &Device) -> Linear {
    LinearConfig::new(inputs, outputs).init(device)
}

/// The mean over all positions: \[batch, channels, height, width\] to \[batch, channels\].
pub(crate) fn global_mean(x: Tensor<4>) -> Tensor<2> {
    in_f32(x, |x| x.mean_dim(3).mean_dim(2)).flatten(1, 3)
}

/// Applies `operation` in `f32`; the result has the type of `x`.
pub(crate) fn in_f32<const D: usize>(
    x: Tensor<D>,
    operation: impl FnOnce(Tensor<D>) -> Tensor<D>,
) -> Tensor<D> {
    let dtype: FloatDType = x.dtype().into();
    operation(x.cast(FloatDType::F32)).cast(dtype)
}

/// Softmax over the last dimension, in `f32`: in half precision its sums lose what matters.
pub(crate) fn softmax_f32<const D: usize>(x: Tensor<D>) -> Tensor<D> {
    in_f32(x, |x| softmax(x, D - 1))
}

/// Dropout, on an autodiff device alone.
pub(crate) fn dropout<const D: usize>(dropout: &Dropout, x: Tensor<D>) -> Tensor<D> {
    #[cfg(all(any(feature = "wgpu", feature = "cuda"), not(feature = "fusion")))]
    if drops(dropout, &x) && x.shape().num_elements() > 0 && kernels::gpu::computes_on(&x.device())
    {
        return kernels::gpu::dropout(x, dropout.prob);
    }
    dropout.forward(x)
}

/// Whether any of `x` drops out.
pub(crate) fn drops<const D: usize>(dropout: &Dropout, x: &Tensor<D>) -> bool {
    dropout.prob > 0.0 && dropout.training.is_enabled() && x.device().is_autodiff()
}

/// GELU with the exact normal distribution.
pub(crate) fn gelu<const D: usize>(x: Tensor<D>) -> Tensor<D> {
    #[cfg(all(any(feature = "wgpu", feature = "cuda"), not(feature = "fusion")))]
    if x.shape().num_elements() > 0 && kernels::gpu::computes_on(&x.device()) {
        return kernels::gpu::gelu(x);
    }
    activation::gelu(x)
}

/// A convolution: on a GPU that has tensor cores for its type with them, if its shape suits them.
pub(crate) fn conv2d(conv: &Conv2d, x: Tensor<4>) -> Tensor<4> {
    #[cfg(all(any(feature = "wgpu", feature = "cuda"), not(feature = "fusion")))]
    if let Some(padding) = padding(&conv.padding)
        && is_plain(conv)
        && kernels::gpu::computes_on(&x.device())
    {
        return conv2d_on_gpu(conv, x, padding);
    }
    conv.forward(x)
}

/// The same on a GPU. Parameters are read once, whatever computes with them: where they are shards, reading
/// gathers them.
#[cfg(all(any(feature = "wgpu", feature = "cuda"), not(feature = "fusion")))]
fn conv2d_on_gpu(conv: &Conv2d, x: Tensor<4>, padding: [usize; 2]) -> Tensor<4> {
    use burn::tensor::{module, ops};
    let (weight, bias) = (conv.weight.val(), read_bias(&conv.bias));
    let stride = conv.stride;
    let options = kernels::gpu::ConvOptions { stride, padding };
    kernels::gpu::conv2d(&x, &weight, bias.as_ref(), options).unwrap_or_else(|| {
        let options = ops::ConvOptions::new(stride, padding, [1, 1], 1);
        let bias = bias.map(|bias| bias.cast(weight.dtype()));
        module::conv2d(x, weight, bias, options)
    })
}

/// A linear layer on the last dimension, as [`conv2d`].
pub(crate) fn linear_forward<const D: usize>(linear: &Linear, x: Tensor<D>) -> Tensor<D> {
    #[cfg(all(any(feature = "wgpu", feature = "cuda"), not(feature = "fusion")))]
    if kernels::gpu::computes_on(&x.device()) {
        return linear_on_gpu(linear, x);
    }
    linear.forward(x)
}

/// The same on a GPU, as [`conv2d_on_gpu`].
#[cfg(all(any(feature = "wgpu", feature = "cuda"), not(feature = "fusion")))]
fn linear_on_gpu<const D: usize>(linear: &Linear, x: Tensor<D>) -> Tensor<D> {
    let (weight, bias) = (linear.weight.val(), read_bias(&linear.bias));
    kernels::gpu::linear(&x, &weight, bias.as_ref()).unwrap_or_else(|| {
        let bias = bias.map(|bias| bias.cast(weight.dtype()));
        burn::tensor::module::linear(x, weight, bias)
    })
}

/// A bias as it is: what the products' sums are in is exacter than what models train in.
#[cfg(all(any(feature = "wgpu", feature = "cuda"), not(feature = "fusion")))]
fn read_bias(bias: &Option<Param<Tensor<1>>>) -> Option<Tensor<1>> {
    bias.as_ref().map(|bias| full_precision(|| bias.val()))
}

/// The maximum of a sliding window.
pub(crate) fn max_pool2d(pool: &MaxPool2d, x: Tensor<4>) -> Tensor<4> {
    #[cfg(all(any(feature = "wgpu", feature = "cuda"), not(feature = "fusion")))]
    if let Some(padding) = padding(&pool.padding)
        && (pool.dilation, pool.ceil_mode) == ([1, 1], false)
        && kernels::gpu::computes_on(&x.device())
    {
        let options = kernels::gpu::PoolOptions {
            window: pool.kernel_size,
            stride: pool.stride,
            padding,
        };
        if let Some(out) = kernels::gpu::max_pool2d(x.clone(), options) {
            return out;
        }
    }
    pool.forward(x)
}

/// Rows above and below, columns on both sides, where these are the same.
pub(crate) fn padding(padding: &PaddingConfig2d) -> Option<[usize; 2]> {
    match *padding {
        PaddingConfig2d::Valid => Some([0, 0]),
        PaddingConfig2d::Explicit(top, left, bottom, right) => {
            (top == bottom && left == right).then_some([top, left])
        }
        PaddingConfig2d::Same => None,
    }
}

/// Whether a convolution neither spreads its window nor divides its channels.
pub(crate) fn is_plain(conv: &Conv2d) -> bool {
    conv.groups == 1 && conv.dilation == [1, 1]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spread(values: Tensor<1>) -> (f32, f32) {
        let std = values.clone().square().mean().sqrt().into_scalar();
        (std, values.abs().max().into_scalar())
    }

    #[test]
    fn convolutions_are_drawn_as_the_references_do() {
        let device = Device::flex();
        device.seed(5);
        let drawn = |draw| {
            let conv = conv([40, 80], 3, 2, draw, &device);
            assert!(conv.bias.is_none());
            spread(conv.weight.val().flatten(0, 3))
        };
        let bound = (40f32 * 9.0).sqrt().recip();
        let (std, largest) = drawn(Draw::Default);
        assert!(largest <= bound, "{largest}");
        assert!((std / bound * 3f32.sqrt() - 1.0).abs() < 0.02, "{std}");
        let expected = (2.0 / (80f32 * 9.0)).sqrt();
        let (std, largest) = drawn(Draw::KaimingFanOut);
        assert!((std / expected - 1.0).abs() < 0.02, "{std}");
        assert!(largest > 3.0 * expected, "not normal: {largest}");
    }

    #[test]
    fn linear_layers_are_drawn_as_pytorch_does() {
        let device = Device::flex();
        device.seed(5);
        let linear = linear(100, 300, &device);
        for values in [
            linear.weight.val().flatten(0, 1),
            linear.bias.unwrap().val(),
        ] {
            let (std, largest) = spread(values);
            assert!(largest <= 0.1 && largest > 0.098, "{largest}");
            assert!((std / 0.1 * 3f32.sqrt() - 1.0).abs() < 0.1, "{std}");
        }
    }
}
