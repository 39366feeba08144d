//! Linear layers.

use burn::tensor::{Tensor, module};

pub use crate::cpu::flex::LinearOptions;

use super::{added, f32, gelu, relu};
use crate::cpu::flex;
use crate::gpu;
use crate::policy::{Engine, engine};

/// Computes `x · weight + bias + plus`, then ReLU if requested; with GELU, `gelu(x)` replaces `x`.
///
/// `x` is \[…, in\], `weight` \[in, out\] as in Burn's layer, `bias` \[out\], `plus` and the result
/// \[…, out\]. On a CPU this is one operation, except GELU in f32, which is faster separately; only
/// a CPU uses `bf16`. NVIDIA GPUs multiply on tensor cores in f16, bf16 and f32. Burn computes
/// shapes and types without a kernel.
///
/// ```
/// use burn::tensor::{Device, Tensor};
/// use kernels::ops::{LinearOptions, linear};
///
/// let device = Device::flex();
/// let (x, weight) = (Tensor::<3>::ones([2, 5, 8], &device), Tensor::ones([8, 4], &device));
/// let bias = Some(Tensor::zeros([4], &device));
/// assert_eq!(linear(x, weight, bias, None, LinearOptions::default()).dims(), [2, 5, 4]);
/// ```
///
/// # Panics
/// Panics if the shapes do not match, as Burn's own operations do.
pub fn linear<const D: usize>(
    x: Tensor<D>,
    weight: Tensor<2>,
    bias: Option<Tensor<1>>,
    plus: Option<Tensor<D>>,
    options: LinearOptions,
) -> Tensor<D> {
    let engine = engine(&x);
    let together = engine == Engine::Cpu && options.bf16;
    let x = if options.gelu && !together {
        gelu(x)
    } else {
        x
    };
    if engine == Engine::Cpu {
        let options = LinearOptions {
            gelu: options.gelu && together,
            ..options
        };
        return flex::linear(x, f32(weight), bias.map(f32), plus, options);
    }
    let out = match engine {
        Engine::Gpu => gpu::linear(&x, &weight, bias.as_ref(), plus.clone()),
        _ => None,
    };
    let out = out.unwrap_or_else(|| {
        let (weight, bias) = (
            weight.cast(x.dtype()),
            bias.map(|bias| bias.cast(x.dtype())),
        );
        added(module::linear(x, weight, bias), plus)
    });
    if options.relu { relu(out) } else { out }
}
