//! Adam.

use burn::optim;
use burn_dist::parallel::ParameterOptimizer;

use super::{AnyOptimizer, moments, rates, weight_decay};
use crate::config::error::Fault;
use crate::config::section::{exactly, keys};

keys! {
    /// `adam`: Adam; weight decay is added to the gradient.
    AdamConfig {
        /// Learning rate. Default 0.001.
        lr: f64 = 1e-3,
        /// Decay of the averages of the gradient and its square, in [0, 1). Default `[0.9, 0.999]`.
        #[serde(deserialize_with = "exactly")]
        betas: [f64; 2] = [0.9, 0.999],
        /// Added to the denominator. Default 1e-8.
        eps: f64 = 1e-8,
        /// Multiple of the parameter that is added to its gradient. Default 0.
        weight_decay: f64 = 0.0,
    }
}

impl AnyOptimizer for AdamConfig {
    rates!();

    fn check(&self) -> Result<(), Fault> {
        moments(self.betas, self.eps)
    }

    fn build(&self) -> ParameterOptimizer {
        optim::AdamConfig::new()
            .with_beta_1(self.betas[0] as f32)
            .with_beta_2(self.betas[1] as f32)
            .with_epsilon(self.eps as f32)
            .with_weight_decay(weight_decay(self.weight_decay))
            .into()
    }
}
