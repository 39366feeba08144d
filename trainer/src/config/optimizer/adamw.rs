//! Adam with decoupled weight decay.

use super::{AnyOptimizer, like_adam};
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
    like_adam!(AdamWConfig, decay => decay as f32);
}
