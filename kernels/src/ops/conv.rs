//! Convolution.

use burn::nn::conv::Conv2d;
use burn::tensor::{Tensor, module, ops};

use super::{added, even, f32, relu};
use crate::cpu::flex;
use crate::gpu;
use crate::policy::{Engine, Layout, chosen, engine_of_conv};

/// How a convolution slides, and what follows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConvOptions {
    /// Step of the window down and to the right.
    pub stride: [usize; 2],
    /// Zeros above and below, and on the left and on the right.
    pub padding: [usize; 2],
    /// Whether ReLU follows.
    pub relu: bool,
    /// Layout of the images, of what is added and of the result.
    pub layout: Layout,
}

/// Stride 1, nothing else.
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
    /// Those of Burn's layer. Nothing if it dilates, has groups, or pads unevenly: then it is for
    /// Burn to compute.
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

/// Computes `x ⊛ weight + bias + plus`, then ReLU if asked for.
///
/// `weight` is \[out, in, window height, window width\], `bias` \[out\]; `plus` is like the result.
/// On the CPU all of it is one operation. GPUs of NVIDIA multiply on tensor cores in f16, bf16 and
/// f32; Burn computes what they lack.
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
/// When the shapes do not fit together, as Burn's own operations do.
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
