//! Activations, and the sum at the end of a residual block.

use burn::tensor::{Tensor, activation};

use crate::cpu::flex;
use crate::gpu;
use crate::policy::{Engine, engine};

/// Computes `x · Φ(x)`: GELU with the exact normal distribution.
///
/// Hendrycks & Gimpel 2016, <https://arxiv.org/abs/1606.08415>.
///
/// ```
/// use burn::tensor::{Device, Tensor};
///
/// let x = Tensor::<1>::from_floats([0.0, 1.0], &Device::flex());
/// let y: Vec<f32> = kernels::ops::gelu(x).into_data().try_to_vec().unwrap();
/// assert!(y[0] == 0.0 && (y[1] - 0.8413).abs() < 1e-4);
/// ```
pub fn gelu<const D: usize>(x: Tensor<D>) -> Tensor<D> {
    match engine(&x) {
        Engine::Cpu => flex::gelu(x),
        Engine::Gpu => gpu::gelu(x),
        Engine::Burn => activation::gelu(x),
    }
}

/// Computes ReLU. On a CPU Burn computes it; layers before it take it as an option.
///
/// ```
/// use burn::tensor::{Device, Tensor};
///
/// let x = Tensor::<1>::from_floats([-1.0, 2.0], &Device::flex());
/// assert_eq!(kernels::ops::relu(x).into_data().try_to_vec(), Ok(vec![0.0f32, 2.0]));
/// ```
pub fn relu<const D: usize>(x: Tensor<D>) -> Tensor<D> {
    match engine(&x) {
        Engine::Gpu => gpu::relu(x),
        Engine::Cpu | Engine::Burn => activation::relu(x),
    }
}

/// Computes `x + y`. On a GPU Burn computes it.
///
/// ```
/// use burn::tensor::{Device, Tensor};
///
/// let x = Tensor::<2>::ones([2, 3], &Device::flex());
/// assert_eq!(kernels::ops::add(x.clone(), x).sum().into_scalar::<f32>(), 12.0);
/// ```
///
/// # Panics
/// Panics if the shapes differ.
pub fn add<const D: usize>(x: Tensor<D>, y: Tensor<D>) -> Tensor<D> {
    match engine(&x) {
        Engine::Cpu => flex::add(x, y, false),
        Engine::Gpu | Engine::Burn => x + y,
    }
}

/// Computes ReLU of `x + y`.
///
/// ```
/// use burn::tensor::{Device, Tensor};
///
/// let x = Tensor::<1>::from_floats([-2.0, 1.0], &Device::flex());
/// assert_eq!(kernels::ops::add_relu(x.clone(), x).into_data().try_to_vec(), Ok(vec![0.0f32, 2.0]));
/// ```
///
/// # Panics
/// Panics if the shapes differ.
pub fn add_relu<const D: usize>(x: Tensor<D>, y: Tensor<D>) -> Tensor<D> {
    match engine(&x) {
        Engine::Cpu => flex::add(x, y, true),
        Engine::Gpu => gpu::add_relu(x, y),
        Engine::Burn => activation::relu(x + y),
    }
}
