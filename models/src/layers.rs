//! Layers with the initialization of the reference implementations, and functions that read their
//! parameters.

use burn::module::Param;
use burn::nn::conv::{Conv2d, Conv2dConfig};
use burn::nn::{Dropout, Initializer, Linear, LinearConfig, PaddingConfig2d};
use burn::tensor::{Device, Tensor};
use burn_dist::autograd::full_precision;
use kernels::ops;

/// Initialization of a convolution's weight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Draw {
    /// Uniform in ±1/√fan_in, PyTorch's default.
    Default,
    /// Normal with variance 2/fan_out, as residual networks are initialised (He et al. 2015,
    /// <https://arxiv.org/abs/1502.01852>).
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

/// A linear layer with PyTorch's default initialization, uniform in ±1/√fan_in.
pub(crate) fn linear(inputs: usize, outputs: usize, device: &Device) -> Linear {
    LinearConfig::new(inputs, outputs).init(device)
}

/// Reads a parameter uncast, even if the model trains in low precision: `kernels::ops` rounds it
/// where needed. Reading initializes a lazy parameter, and gathers a sharded one.
pub(crate) fn read<const D: usize>(parameter: &Param<Tensor<D>>) -> Tensor<D> {
    full_precision(|| parameter.val())
}

/// Applies dropout, on an autodiff device only.
pub(crate) fn dropout<const D: usize>(dropout: &Dropout, x: Tensor<D>) -> Tensor<D> {
    match drops(dropout, &x) {
        true => ops::dropout(x, dropout.prob),
        false => x,
    }
}

/// Whether elements of `x` drop out.
pub(crate) fn drops<const D: usize>(dropout: &Dropout, x: &Tensor<D>) -> bool {
    dropout.prob > 0.0 && dropout.training.is_enabled() && x.device().is_autodiff()
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
