//! Convolutions and linear layers on NVIDIA's tensor cores, with their gradients, as implicit
//! matrix products: only images, weights and results are written to memory. [`super::split`] splits
//! f32 numbers first.
//!
//! Chetlur et al. 2014, <https://arxiv.org/abs/1410.0759>, describe the method; CUTLASS's `conv`
//! (its "optimized" iterators for two-dimensional convolutions) is the reference. Burn's own
//! kernels (cubek-convolution 0.3.1) keep one stage of at most 64 by 64 in shared memory. They
//! shrink it instead of dividing the long sum of a weight's gradient.

mod arrange;
mod check;
mod geometry;
mod halo;
mod launch;
mod linear;
mod operation;
mod parts;
mod plan;
mod product;
mod shape;
mod slide;
mod tile;
mod tune;
mod warpgroups;
mod weights;
mod widen;

#[cfg(all(test, feature = "cuda"))]
mod tests;

pub use linear::linear;

use std::sync::Arc;

use burn::tensor::{DType, Device, Tensor};

use super::matrix::primitive;
use super::tensor_cores::has_instructions;
use crate::gpu::ConvOptions;
use geometry::Geometry;
use launch::Convolution;

/// Computes `x ⊛ weight + bias + plus` on tensor cores, if they support it.
///
/// They support `x` in f32, f16 or bf16 on a GPU with the instructions; the result is `None`
/// otherwise. `x` is \[batch, in, height, width\], `weight` \[out, in, window height, window
/// width\], `bias` \[out\], the result \[batch, out, out height, out width\]. The result lies
/// channels-last in memory; `x` and `plus` are fastest in the same layout. `weight` may be in f32:
/// it is rounded to the type of `x`, and its gradient is not. Products of f32 numbers use sixteen
/// bits. Sums are in f32, and so is the bias.
///
/// # Panics
///
/// Panics unless [`crate::gpu::is_gpu`] is true for the tensors' device.
pub fn conv2d(
    x: &Tensor<4>,
    weight: &Tensor<4>,
    bias: Option<&Tensor<1>>,
    plus: Option<Tensor<4>>,
    options: ConvOptions,
) -> Option<Tensor<4>> {
    let inner = [x, weight].map(|tensor| primitive(tensor.clone().without_autodiff()));
    let geometry = Geometry::new(x.dims(), weight.dims(), options)?;
    let convolution = Convolution::new(&inner[0], &inner[1], geometry)?;
    let plus = (plus, convolution.dims());
    let convolution = Arc::new(convolution);
    Some(operation::apply(convolution, x, weight, bias, plus))
}

/// Whether [`conv2d`] and [`linear`] work on `device`: it has the instructions for f16, and for
/// bf16, into which f32 is split.
///
/// # Panics
/// If it is not one that [`crate::gpu::is_gpu`].
pub fn multiplies_on(device: &Device) -> bool {
    let one = primitive(Tensor::<1>::zeros([1], &device.clone().inner()));
    [DType::F16, DType::BF16].map(|dtype| has_instructions(&one.client, dtype)) == [true; 2]
}
