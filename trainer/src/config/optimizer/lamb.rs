//! LAMB: Adam with updates scaled to the norm of their parameter.

use burn_dist::parallel::ParameterSpec;

use super::{AnyOptimizer, like_adam};
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
    like_adam!(LambConfig, decay => decay as f32);

    fn whole(&self, _: &ParameterSpec) -> bool {
        true
    }
}
