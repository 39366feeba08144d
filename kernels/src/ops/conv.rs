//! Convolution.

use burn::nn::conv::Conv2d;
use burn::tensor::{Tensor, module, ops};

use super::{added, even, f32, relu};
use crate::cpu::flex;
use crate::gpu;
use crate::policy::{Engine, Layout, chosen, engine_of_conv};

/// Stride and padding of a convolution, and the operations after it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConvOptions {
    /// Stride down and to the right.
    pub stride: [usize; 2],
    /// Zeros above and below, and to the left and right.
    pub padding: [usize; 2],
    /// Whether ReLU follows.
    pub relu: bool,
    /// Layout of the images, of the summand and of the result.
    pub layout: Layout,
}

/// Stride 1, no padding, no ReLU, channels first.
impl Default for ConvOptions {
    fn default() -> Self {
        Self {
            stride: [1, 1],
            padding: [0, 0],
            relu: false,
            layout: Layout::ChannelsFirst,
        }
    }
}

impl ConvOptions {
    /// The options of Burn's layer.
    ///
    /// `None` if it has dilation, groups or uneven padding; then Burn must compute it.
    pub fn of(conv: &Conv2d, layout: Layout) -> Option<Self> {
        let plain = conv.groups == 1 && conv.dilation == [1, 1];
        Some(Self {
            stride: conv.stride,
            padding: even(&conv.padding).filter(|_| plain)?,
            relu: false,
            layout,
        })
    }
}

/// Computes `x ⊛ weight + bias + plus`, then ReLU if requested.
///
/// `weight` is \[out, in, window height, window width\], `bias` \[out\]; `plus` has the shape of
/// the result. On a CPU this is one operation. NVIDIA GPUs multiply on tensor cores in f16, bf16
/// and f32. Burn computes shapes and types without a kernel.
///
/// ```
/// use burn::tensor::{Device, Tensor};
/// use kernels::ops::{ConvOptions, conv2d};
///
/// let device = Device::flex();
/// let (x, weight) = (Tensor::ones([1, 3, 8, 8], &device), Tensor::ones([16, 3, 3, 3], &device));
/// let options = ConvOptions { padding: [1, 1], relu: true, ..ConvOptions::default() };
/// assert_eq!(conv2d(x, weight, None, None, options).dims(), [1, 16, 8, 8]);
/// ```
///
/// # Panics
/// Panics if the shapes do not match, as Burn's own operations do.
pub fn conv2d(
    x: Tensor<4>,
    weight: Tensor<4>,
    bias: Option<Tensor<1>>,
    plus: Option<Tensor<4>>,
    options: ConvOptions,
) -> Tensor<4> {
    let ConvOptions {
        stride,
        padding,
        layout,
        ..
    } = options;
    let engine = engine_of_conv(&x);
    if engine == Engine::Cpu {
        let options = flex::ConvOptions {
            stride,
            padding,
            method: chosen().method(),
            relu: options.relu,
        };
        let plus = plus.map(|plus| layout.to_channels_last(plus));
        let x = layout.to_channels_last(x);
        return layout.of_channels_last(flex::conv2d(x, f32(weight), bias.map(f32), plus, options));
    }
    let (x, plus) = (
        layout.to_channels_first(x),
        plus.map(|plus| layout.to_channels_first(plus)),
    );
    let out = match engine {
        Engine::Gpu => {
            let options = gpu::ConvOptions { stride, padding };
            gpu::conv2d(&x, &weight, bias.as_ref(), plus.clone(), options)
        }
        _ => None,
    };
    let out = out.unwrap_or_else(|| {
        let options = ops::ConvOptions::new(stride, padding, [1, 1], 1);
        let (weight, bias) = (
            weight.cast(x.dtype()),
            bias.map(|bias| bias.cast(x.dtype())),
        );
        added(module::conv2d(x, weight, bias, options), plus)
    });
    layout.of_channels_first(if options.relu { relu(out) } else { out })
}
