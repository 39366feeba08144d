//! LAMB: Adam with updates scaled to the norm of their parameter.

use burn::optim;
use burn_dist::parallel::{ParameterOptimizer, ParameterSpec};

use super::{AnyOptimizer, moments, rates};
use crate::config::error::Fault;
use crate::config::section::{exactly, keys};

keys! {
    /// `lamb`: Adam with updates scaled to the norm of their parameter, for large batches.
    LambConfig {
        /// Learning rate. Default 0.001.
        lr: f64 = 1e-3,
        /// Decay of the averages of the gradient and its square, in [0, 1). Default `[0.9, 0.999]`.
        #[serde(deserialize_with = "exactly")]
        betas: [f64; 2] = [0.9, 0.999],
        /// Added to the denominator. Default 1e-6.
        eps: f64 = 1e-6,
        /// Multiple of the parameter added to its update, before the update is scaled. Default
        /// 0.01.
        weight_decay: f64 = 0.01,
    }
}

impl AnyOptimizer for LambConfig {
    rates!();

    fn check(&self) -> Result<(), Fault> {
        moments(self.betas, self.eps)
    }

    fn whole(&self, _: &ParameterSpec) -> bool {
        true
    }

    fn build(&self) -> ParameterOptimizer {
        optim::LambConfig::new()
            .with_beta_1(self.betas[0] as f32)
            .with_beta_2(self.betas[1] as f32)
            .with_epsilon(self.eps as f32)
            .with_weight_decay(self.weight_decay as f32)
            .into()
    }
}
