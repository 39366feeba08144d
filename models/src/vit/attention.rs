//! Multi-head self-attention (Vaswani et al. 2017, <https://arxiv.org/abs/1706.03762>) with query,
//! key and value in one linear layer.

use burn::module::Module;
use burn::nn::{Dropout, DropoutConfig, Linear};
use burn::tensor::{Device, Tensor};

use super::block::Wanted;
use super::config::linear;
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

    /// Maps \[batch, tokens, dim\] to the wanted tokens, with the operations that follow.
    pub(super) fn forward(
        &self,
        path: Path,
        x: Tensor<3>,
        wanted: Wanted,
        then: Then<3>,
    ) -> Tensor<3> {
        let qkv = path.linear(&self.qkv, x, then_nothing());
        let x = path.attention(qkv, self.heads);
        path.linear_dropout(&self.proj, &self.proj_drop, wanted.of(x), then)
    }
}
