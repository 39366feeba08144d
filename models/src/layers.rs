//! Layers as the reference implementations initialise them.

use burn::nn::conv::{Conv2d, Conv2dConfig};
use burn::nn::{Initializer, Linear, LinearConfig, PaddingConfig2d};
use burn::tensor::{Device, Tensor};

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
    x.mean_dim(3).mean_dim(2).flatten(1, 3)
}
