//! Multi-head self-attention (Vaswani et al. 2017, <https://arxiv.org/abs/1706.03762>).

use burn::tensor::Tensor;
use burn::tensor::activation::softmax;

use super::in_f32;
use crate::cpu::flex;
use crate::gpu;
use crate::policy::{Engine, engine};

/// Computes `softmax(q kᵀ / √depth) v` for every head.
///
/// `qkv` is \[batch, tokens, 3 × heads × depth\]: queries, keys and values in this order, each with
/// the heads one after another. The result is \[batch, tokens, heads × depth\].
///
/// With `bf16`, a CPU rounds the factors of the products to bf16 if that is faster; other devices
/// ignore it. NVIDIA GPUs compute FlashAttention-2 in f16 and bf16. Softmax is in f32.
///
/// ```
/// use burn::tensor::{Device, Tensor};
///
/// let qkv = Tensor::ones([2, 5, 3 * 8], &Device::flex());
/// assert_eq!(kernels::ops::attention(qkv, 4, false).dims(), [2, 5, 8]);
/// ```
///
/// # Panics
/// Panics if the last dimension is no multiple of 3 × heads, as Burn's own operations do.
pub fn attention(qkv: Tensor<3>, heads: usize, bf16: bool) -> Tensor<3> {
    match engine(&qkv) {
        Engine::Cpu => flex::attention(qkv, heads, bf16),
        Engine::Gpu => gpu::attention(qkv, heads),
        Engine::Burn => by_burn(qkv, heads),
    }
}

fn by_burn(qkv: Tensor<3>, heads: usize) -> Tensor<3> {
    let [batch, tokens, width] = qkv.dims();
    let dim = width / 3;
    let depth = dim / heads;
    let qkv = qkv
        .reshape([batch, tokens, 3, heads, depth])
        .permute([2, 0, 3, 1, 4]);
    let part = |index| qkv.clone().narrow(0, index, 1).squeeze_dim::<4>(0);
    // Scaling the queries costs less than scaling the larger product.
    let query = part(0) * (depth as f64).powf(-0.5);
    // The sums of softmax need more precision than half.
    let weights = in_f32(query.matmul(part(1).transpose()), |x| softmax(x, 3));
    let x = weights.matmul(part(2)).swap_dims(1, 2);
    x.reshape([batch, tokens, dim])
}
