//! Multi-head self-attention (Vaswani et al. 2017, <https://arxiv.org/abs/1706.03762>) with query,
//! key and value in one linear layer.

use burn::module::Module;
use burn::nn::{Dropout, DropoutConfig, Linear};
use burn::tensor::{Device, Tensor};

use super::block::Wanted;
use super::config::linear;
use crate::layers::softmax_f32;
use crate::path::{Path, Then, then_nothing};

/// `proj(softmax(q kᵀ / √d) v)` for every head.
#[derive(Module, Debug)]
pub(super) struct Attention {
    /// Rows of query, key and value, in this order, each with the heads one after another.
    qkv: Linear,
    proj: Linear,
    proj_drop: Dropout,
    heads: usize,
}

impl Attention {
    pub(super) fn new(dim: usize, heads: usize, dropout: f64, device: &Device) -> Self {
        Self {
            qkv: linear(dim, 3 * dim, device),
            proj: linear(dim, dim, device),
            proj_drop: DropoutConfig::new(dropout).init(),
            heads,
        }
    }

    /// \[batch, tokens, dim\] to the tokens wanted, and what follows.
    pub(super) fn forward(
        &self,
        path: Path,
        x: Tensor<3>,
        wanted: Wanted,
        then: Then<3>,
    ) -> Tensor<3> {
        let qkv = path.linear(&self.qkv, x, then_nothing());
        let x = match path {
            Path::Own { bf16, .. } => kernels::cpu::flex::attention(qkv, self.heads, bf16),
            Path::Burn => self.mix(qkv),
        };
        path.linear_dropout(&self.proj, &self.proj_drop, wanted.of(x), then)
    }

    /// `softmax(q kᵀ / √d) v` where it is not computed by the processor's kernels.
    fn mix(&self, qkv: Tensor<3>) -> Tensor<3> {
        #[cfg(own_gpu)]
        if let Some(out) = crate::gpu::attention(&qkv, self.heads) {
            return out;
        }
        let [batch, tokens, width] = qkv.dims();
        let dim = width / 3;
        let depth = dim / self.heads;
        let qkv = qkv
            .reshape([batch, tokens, 3, self.heads, depth])
            .permute([2, 0, 3, 1, 4]);
        let part = |index| qkv.clone().narrow(0, index, 1).squeeze_dim::<4>(0);
        // Scaling the queries costs less than scaling the larger product.
        let query = part(0) * (depth as f64).powf(-0.5);
        let weights = softmax_f32(query.matmul(part(1).transpose()));
        let x = weights.matmul(part(2)).swap_dims(1, 2);
        x.reshape([batch, tokens, dim])
    }
}
