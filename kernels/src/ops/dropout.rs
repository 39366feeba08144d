//! Dropout (Srivastava et al. 2014, <https://jmlr.org/papers/v15/srivastava14a.html>).

use burn::tensor::{Distribution, Tensor};

use crate::cpu::flex;
use crate::gpu;
use crate::policy::{Engine, engine};

/// Sets each element to zero with probability `rate`, and divides the others by `1 − rate`.
///
/// `rate` is below 1. The device's generator draws the elements. The kernels draw only a key and
/// keep no mask. GPUs round `rate` to a multiple of 2⁻¹⁶. It drops on any device, so call it in
/// training only.
///
/// ```
/// use burn::tensor::{Device, Tensor};
///
/// let x = Tensor::<2>::ones([100, 100], &Device::flex());
/// let mean = kernels::ops::dropout(x, 0.5).mean().into_scalar::<f32>();
/// assert!((mean - 1.0).abs() < 0.1);
/// ```
pub fn dropout<const D: usize>(x: Tensor<D>, rate: f64) -> Tensor<D> {
    if rate == 0.0 {
        return x;
    }
    match engine(&x) {
        Engine::Cpu => flex::dropout(x, rate),
        Engine::Gpu => gpu::dropout(x, rate),
        Engine::Burn => {
            let kept = 1.0 - rate;
            let mask = x.random_like(Distribution::Bernoulli(kept));
            x * mask * (1.0 / kept)
        }
    }
}
