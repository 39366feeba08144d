//! One function per layer, on Burn's tensors and on any device.
//!
//! Each function is differentiable and asks [`policy`](crate::policy) which kernels compute it:
//! those for the CPU, those for GPUs, or Burn's. It takes parameters as a module holds them, in f32
//! even if activations have a low precision. The result has the type of the input.
//!
//! Functions of images take a [`Layout`]. [`layout()`] returns the fastest one for a device: a
//! model converts its images once, with [`Layout::of_channels_first`], and computes all layers in
//! it. Any layout works on any device.
//!
//! Like Burn's operations they panic if shapes do not match. On a CPU they also panic if
//! `BURN_DIST_KERNELS_ISA` names no instruction set of this machine.
//!
//! ```
//! use burn::tensor::{Device, Tensor};
//! use kernels::ops::{ConvOptions, LinearOptions, conv2d, layout, linear, mean_of_pixels};
//!
//! let device = Device::flex();
//! let images = Tensor::<4>::ones([2, 3, 8, 8], &device);
//! let layout = layout(&device, images.dtype());
//! let options = ConvOptions { padding: [1, 1], relu: true, layout, ..ConvOptions::default() };
//! let (weight, head) = (Tensor::ones([16, 3, 3, 3], &device), Tensor::ones([16, 10], &device));
//!
//! let x = conv2d(layout.of_channels_first(images), weight, None, None, options);
//! let logits = linear(mean_of_pixels(x, [8, 8], layout), head, None, None, LinearOptions::default());
//! assert_eq!(logits.dims(), [2, 10]);
//! ```

mod activation;
mod attention;
mod conv;
mod dropout;
mod embed;
mod layout;
mod linear;
mod loss;
mod norm;
mod pool;

pub use crate::policy::{Layout, layout};
pub use activation::{add, add_relu, gelu, relu};
pub use attention::{attention, causal_attention};
pub use conv::{ConvOptions, conv2d};
pub use dropout::dropout;
pub use embed::embed;
pub use linear::{LinearOptions, linear};
pub use loss::cross_entropy;
pub use norm::{BatchMoments, ThenNorm, batch_norm, batch_norm_train, finish_norm, layer_norm};
pub use pool::{PoolOptions, max_pool2d, mean_of_pixels, mean_of_tokens};

use burn::nn::PaddingConfig2d;
use burn::tensor::{FloatDType, Tensor};

/// Applies `operation` in f32; the result has the type of `x`.
fn in_f32<const D: usize>(
    x: Tensor<D>,
    operation: impl FnOnce(Tensor<D>) -> Tensor<D>,
) -> Tensor<D> {
    let dtype: FloatDType = x.dtype().into();
    operation(x.cast(FloatDType::F32)).cast(dtype)
}

/// `x` plus the optional summand.
fn added<const D: usize>(x: Tensor<D>, plus: Option<Tensor<D>>) -> Tensor<D> {
    match plus {
        Some(plus) => x + plus,
        None => x,
    }
}

fn f32<const D: usize>(parameter: Tensor<D>) -> Tensor<D> {
    parameter.cast(FloatDType::F32)
}

/// Padding of rows and of columns, if it is the same on both sides.
fn even(padding: &PaddingConfig2d) -> Option<[usize; 2]> {
    match *padding {
        PaddingConfig2d::Valid => Some([0, 0]),
        PaddingConfig2d::Explicit(top, left, bottom, right) => {
            (top == bottom && left == right).then_some([top, left])
        }
        PaddingConfig2d::Same => None,
    }
}
