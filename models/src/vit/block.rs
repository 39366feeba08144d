//! A block: attention between the tokens, then an MLP on each token. Both are added to their input.

use burn::module::Module;
use burn::nn::{Dropout, DropoutConfig, Linear};
use burn::tensor::{Device, Tensor};
use burn_dist::autograd::boundary;
use kernels::ops;

use super::VitConfig;
use super::attention::Attention;
use super::config::{layer_norm, linear};
use crate::LayerNorm;
use crate::drop_path::DropPath;
use crate::flops::Tracer;
use crate::layers::{dropout, drops};
use crate::path::{Path, Then, then_nothing, then_plus};

/// The tokens of a block's result that are needed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Wanted {
    All,
    /// Only the first one.
    First,
}

impl Wanted {
    /// Selects the needed tokens of \[batch, tokens, dim\].
    pub(super) fn of(self, x: Tensor<3>) -> Tensor<3> {
        match self {
            Self::All => x,
            Self::First => x.narrow(1, 0, 1),
        }
    }

    fn count(self, tokens: usize) -> usize {
        match self {
            Self::All => tokens,
            Self::First => 1,
        }
    }
}

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

    /// Counts the operations for one image.
    pub(super) fn trace(&self, tokens: usize, wanted: Wanted, tracer: &mut Tracer) {
        let [dim, _] = self.mlp.fc1.weight.lazy_shape().dims::<2>();
        // Query, key and value.
        tracer.product(tokens, dim, 3 * dim);
        // Queries by keys, weights by values: all heads together cost as much as one of the whole
        // width.
        tracer.product(tokens, dim, tokens);
        tracer.product(tokens, tokens, dim);
        let tokens = wanted.count(tokens);
        tracer.product(tokens, dim, dim);
        tracer.linear_on(&self.mlp.fc1, tokens);
        tracer.linear_on(&self.mlp.fc2, tokens);
    }

    /// Maps \[batch, tokens, dim\] to the wanted tokens.
    pub(super) fn forward(&self, path: Path, x: Tensor<3>, wanted: Wanted) -> Tensor<3> {
        let x = boundary(x);
        let normal = self.norm1.forward(x.clone());
        let x = self.plus(wanted.of(x), |then| {
            self.attn.forward(path, normal, wanted, then)
        });
        let normal = self.norm2.forward(x.clone());
        self.plus(x, |then| self.mlp.forward(path, normal, then))
    }

    /// Computes `x` plus a branch: in the branch's last layer, unless samples drop out of the
    /// branch.
    fn plus(&self, x: Tensor<3>, branch: impl FnOnce(Then<3>) -> Tensor<3>) -> Tensor<3> {
        match self.drop_path.is_active(&x) {
            true => x + self.drop_path.forward(branch(then_nothing())),
            false => branch(then_plus(x)),
        }
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
    fn forward(&self, path: Path, x: Tensor<3>, then: Then<3>) -> Tensor<3> {
        let x = path.linear(&self.fc1, x, then_nothing());
        if !drops(&self.drop, &x) {
            return path.gelu_linear(&self.fc2, x, then);
        }
        let x = dropout(&self.drop, ops::gelu(x));
        path.linear_dropout(&self.fc2, &self.drop, x, then)
    }
}
