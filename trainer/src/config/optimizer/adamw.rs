//! Adam with decoupled weight decay.

use burn::optim;
use burn_dist::parallel::ParameterOptimizer;

use super::{AnyOptimizer, moments, rates};
use crate::config::error::Fault;
use crate::config::section::{exactly, keys};

keys! {
    /// `adamw`: Adam with decoupled weight decay.
    AdamWConfig {
        /// Learning rate. Default 0.001.
        lr: f64 = 1e-3,
        /// Decay of the averages of the gradient and its square, in [0, 1). Default `[0.9, 0.999]`.
        #[serde(deserialize_with = "exactly")]
        betas: [f64; 2] = [0.9, 0.999],
        /// Added to the denominator. Default 1e-8.
        eps: f64 = 1e-8,
        /// Weight decay: each step subtracts this share of the parameter, times `lr`. Default 0.01.
        weight_decay: f64 = 0.01,
    }
}

impl AnyOptimizer for AdamWConfig {
    rates!();

    fn check(&self) -> Result<(), Fault> {
        moments(self.betas, self.eps)
    }

    fn build(&self) -> ParameterOptimizer {
        optim::AdamWConfig::new()
            .with_beta_1(self.betas[0] as f32)
            .with_beta_2(self.betas[1] as f32)
            .with_epsilon(self.eps as f32)
            .with_weight_decay(self.weight_decay as f32)
            .into()
    }
}
