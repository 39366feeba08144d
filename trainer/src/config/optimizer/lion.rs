//! Lion (Chen et al. 2023, <https://arxiv.org/abs/2302.06675>).

use burn::optim;
use burn_dist::parallel::{ParameterOptimizer, ParameterSpec};

use super::{AnyOptimizer, decays, rates};
use crate::config::error::Fault;
use crate::config::section::{exactly, keys};

keys! {
    /// `lion`: signs of averaged gradients, so that all elements change by the same amount.
    LionConfig {
        /// Learning rate; use a value three to ten times smaller than for AdamW. Default 0.0001.
        lr: f64 = 1e-4,
        /// Decay of the gradient averages, in [0, 1): of the average whose sign is the step, and of
        /// the stored average. Default `[0.9, 0.99]`.
        #[serde(deserialize_with = "exactly")]
        betas: [f64; 2] = [0.9, 0.99],
        /// Share of each parameter, times `lr`, subtracted in a step; use a value three to ten
        /// times larger than for AdamW. Default 0.
        weight_decay: f64 = 0.0,
    }
}

impl AnyOptimizer for LionConfig {
    rates!();

    fn check(&self) -> Result<(), Fault> {
        decays(self.betas)
    }

    fn keeps(&self, parameter: &ParameterSpec) -> u64 {
        parameter.num_elements() as u64
    }

    fn build(&self) -> ParameterOptimizer {
        optim::LionConfig::new()
            .with_beta_1(self.betas[0] as f32)
            .with_beta_2(self.betas[1] as f32)
            .with_weight_decay(self.weight_decay as f32)
            .into()
    }
}
