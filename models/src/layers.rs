//! Layers as the reference implementations initialise them, and what they compute in `f32` whatever
//! the precision of the model is.

use burn::nn::conv::{Conv2d, Conv2dConfig};
use burn::nn::pool::MaxPool2d;
use burn::nn::{Dropout, Initializer, Linear, LinearConfig, PaddingConfig2d};
use burn::tensor::activation::{self, softmax};
use burn::tensor::{Device, FloatDType, Tensor};

#[cfg(own_gpu)]
use crate::gpu;

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

/// The mean over the first rows and columns: \[batch, channels, height, width\] to \[batch, channels\].
pub(crate) fn mean_of(x: Tensor<4>, part: [usize; 2]) -> Tensor<2> {
    #[cfg(own_gpu)]
    if let Some(out) = gpu::mean_of(&x, part) {
        return out;
    }
    let [batch, channels, rows, columns] = x.dims();
    let x = match [rows, columns] == part {
        true => x,
        false => x.slice([0..batch, 0..channels, 0..part[0], 0..part[1]]),
    };
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
    #[cfg(own_gpu)]
    if let Some(out) = gpu::dropout(dropout, &x) {
        return out;
    }
    dropout.forward(x)
}

/// Whether any of `x` drops out.
pub(crate) fn drops<const D: usize>(dropout: &Dropout, x: &Tensor<D>) -> bool {
    dropout.prob > 0.0 && dropout.training.is_enabled() && x.device().is_autodiff()
}

/// GELU with the exact normal distribution.
pub(crate) fn gelu<const D: usize>(x: Tensor<D>) -> Tensor<D> {
    #[cfg(own_gpu)]
    if let Some(out) = gpu::gelu(&x) {
        return out;
    }
    activation::gelu(x)
}

/// ReLU.
pub(crate) fn relu<const D: usize>(x: Tensor<D>) -> Tensor<D> {
    #[cfg(own_gpu)]
    if let Some(out) = gpu::relu(&x) {
        return out;
    }
    activation::relu(x)
}

/// ReLU of `x + y`.
pub(crate) fn add_relu<const D: usize>(x: Tensor<D>, y: Tensor<D>) -> Tensor<D> {
    #[cfg(own_gpu)]
    if let Some(out) = gpu::add_relu(&x, &y) {
        return out;
    }
    activation::relu(x + y)
}

/// A convolution, and what is added to it.
pub(crate) fn conv2d(conv: &Conv2d, x: Tensor<4>, plus: Option<Tensor<4>>) -> Tensor<4> {
    #[cfg(own_gpu)]
    if let Some(out) = gpu::conv2d(conv, &x, plus.as_ref()) {
        return out;
    }
    added(conv.forward(x), plus)
}

/// A linear layer on the last dimension, and what is added to it.
pub(crate) fn linear_forward<const D: usize>(
    linear: &Linear,
    x: Tensor<D>,
    plus: Option<Tensor<D>>,
) -> Tensor<D> {
    #[cfg(own_gpu)]
    if let Some(out) = gpu::linear(linear, &x, plus.as_ref()) {
        return out;
    }
    added(linear.forward(x), plus)
}

/// `x`, and what is added to it.
pub(crate) fn added<const D: usize>(x: Tensor<D>, plus: Option<Tensor<D>>) -> Tensor<D> {
    match plus {
        Some(plus) => x + plus,
        None => x,
    }
}

/// The maximum of a sliding window.
pub(crate) fn max_pool2d(pool: &MaxPool2d, x: Tensor<4>) -> Tensor<4> {
    #[cfg(own_gpu)]
    if let Some(out) = gpu::max_pool2d(pool, &x) {
        return out;
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
        let linear = linear(100, 3000, &device);
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
