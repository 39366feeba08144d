//! Multi-head self-attention (Vaswani et al. 2017, <https://arxiv.org/abs/1706.03762>).

use burn::tensor::activation::softmax;
use burn::tensor::{Bool, Tensor};

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

/// Computes [`attention`] in which a token sees itself and those before it. Burn computes it.
///
/// ```
/// use burn::tensor::{Device, Tensor};
///
/// let qkv = Tensor::ones([2, 5, 3 * 8], &Device::flex());
/// assert_eq!(kernels::ops::causal_attention(qkv, 4).dims(), [2, 5, 8]);
/// ```
///
/// # Panics
/// Panics if the last dimension is no multiple of 3 × heads, as Burn's own operations do.
pub fn causal_attention(qkv: Tensor<3>, heads: usize) -> Tensor<3> {
    let [_, tokens, _] = qkv.dims();
    let later = Tensor::<2, Bool>::tril_mask([tokens, tokens], 0, &qkv.device());
    masked(qkv, heads, |scores| {
        let shape = scores.dims();
        scores.mask_fill(later.expand(shape), f32::NEG_INFINITY)
    })
}

fn by_burn(qkv: Tensor<3>, heads: usize) -> Tensor<3> {
    masked(qkv, heads, |scores| scores)
}

/// Attention with scores that `mask` changes before softmax.
fn masked(qkv: Tensor<3>, heads: usize, mask: impl FnOnce(Tensor<4>) -> Tensor<4>) -> Tensor<3> {
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
    let scores = query.matmul(part(1).transpose());
    let weights = in_f32(scores, |x| softmax(mask(x), 3));
    let x = weights.matmul(part(2)).swap_dims(1, 2);
    x.reshape([batch, tokens, dim])
}

#[cfg(test)]
mod tests {
    use burn::tensor::Device;

    use super::*;

    /// The first tokens alone have the result that they have before others.
    #[test]
    fn later_tokens_are_not_seen() {
        let device = Device::flex();
        let random = burn::tensor::Distribution::Default;
        let qkv = Tensor::<3>::random([2, 5, 3 * 8], random, &device);
        let all = causal_attention(qkv.clone(), 2);
        for tokens in 1..=5 {
            let first = causal_attention(qkv.clone().narrow(1, 0, tokens), 2);
            let difference = first - all.clone().narrow(1, 0, tokens);
            let most = difference.abs().max().into_scalar::<f32>();
            assert!(most < 1e-6, "{tokens}: {most}");
        }
        // The last token sees all.
        let whole = attention(qkv, 2, false).narrow(1, 4, 1);
        let most = (whole - all.narrow(1, 4, 1)).abs().max();
        assert!(most.into_scalar::<f32>() < 1e-5);
    }
}
