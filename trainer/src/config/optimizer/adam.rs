//! Adam.

use super::{AnyOptimizer, like_adam, weight_decay};
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
    like_adam!(AdamConfig, decay => weight_decay(decay));
}
