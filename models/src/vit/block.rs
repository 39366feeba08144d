//! A block: attention between the tokens, then a two-layer network on each, both added to their
//! input.

use burn::module::Module;
use burn::nn::{Dropout, DropoutConfig, Linear};
use burn::tensor::activation::gelu;
use burn::tensor::{Device, Tensor};
use burn_dist::autograd::boundary;

use super::VitConfig;
use super::attention::Attention;
use super::config::{layer_norm, linear};
use super::drop_path::DropPath;
use crate::LayerNorm;
use crate::flops::Tracer;

/// `x + attn(norm1(x))`, then `x + mlp(norm2(x))`.
#[derive(Module, Debug)]
pub(super) struct Block {
    norm1: LayerNorm,
    attn: Attention,
    norm2: LayerNorm,
    mlp: Mlp,
    drop_path: DropPath,
}

impl Block {
    pub(super) fn new(config: &VitConfig, drop_path: f64, device: &Device) -> Self {
        let VitConfig { dim, dropout, .. } = *config;
        Self {
            norm1: layer_norm(dim, device),
            attn: Attention::new(dim, config.heads, dropout, device),
            norm2: layer_norm(dim, device),
            mlp: Mlp {
                fc1: linear(dim, dim * config.mlp_ratio, device),
                fc2: linear(dim * config.mlp_ratio, dim, device),
                drop: DropoutConfig::new(dropout).init(),
            },
            drop_path: DropPath::new(drop_path),
        }
    }

    /// Counts the operations on one image.
    pub(super) fn trace(&self, tokens: usize, tracer: &mut Tracer) {
        let [dim, _] = self.mlp.fc1.weight.lazy_shape().dims::<2>();
        // Query, key, value and the projection of their result.
        tracer.product(tokens, dim, 4 * dim);
        // Queries by keys, weights by values: over all heads as one head of the whole width.
        tracer.product(tokens, dim, tokens);
        tracer.product(tokens, tokens, dim);
        tracer.linear_on(&self.mlp.fc1, tokens);
        tracer.linear_on(&self.mlp.fc2, tokens);
    }

    /// \[batch, tokens, dim\] to the same shape.
    pub(super) fn forward(&self, x: Tensor<3>) -> Tensor<3> {
        let x = boundary(x);
        let branch = self.attn.forward(self.norm1.forward(x.clone()));
        let x = x + self.drop_path.forward(branch);
        let branch = self.mlp.forward(self.norm2.forward(x.clone()));
        x + self.drop_path.forward(branch)
    }
}

/// linear, GELU (exact), dropout, linear, dropout.
#[derive(Module, Debug)]
struct Mlp {
    fc1: Linear,
    fc2: Linear,
    drop: Dropout,
}

impl Mlp {
    fn forward(&self, x: Tensor<3>) -> Tensor<3> {
        let x = self.drop.forward(gelu(self.fc1.forward(x)));
        self.drop.forward(self.fc2.forward(x))
    }
}
