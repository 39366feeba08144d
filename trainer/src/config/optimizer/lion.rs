//! Lion (Chen et al. 2023, <https://arxiv.org/abs/2302.06675>).

use burn::optim;
use burn_dist::parallel::{ParameterOptimizer, ParameterSpec};

use super::{AnyOptimizer, decays, rates};
use crate::config::error::Fault;
use crate::config::section::{exactly, keys};

keys! {
    /// `lion`: steps of the same size for all elements, by the signs of averaged gradients.
    LionConfig {
        /// Learning rate; three to ten times smaller than AdamW's would be. Default 0.0001.
        lr: f64 = 1e-4,
        /// Decay of the average of gradients, in [0, 1): in the average whose signs a step takes,
        /// and in the one that is kept. Default `[0.9, 0.99]`.
        #[serde(deserialize_with = "exactly")]
        betas: [f64; 2] = [0.9, 0.99],
        /// Share of each parameter, times `lr`, that a step takes away; three to ten times larger
        /// than AdamW's would be. Default 0.
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
