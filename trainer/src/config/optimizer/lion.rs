//! Lion (Chen et al. 2023, <https://arxiv.org/abs/2302.06675>).

use burn::optim;
use burn_dist::parallel::{ParameterOptimizer, ParameterSpec};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{AnyOptimizer, decays, rates};
use crate::config::error::Fault;
use crate::config::section::exactly;

/// `lion`: steps of the same size for all elements, by the signs of averaged gradients.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct LionConfig {
    /// Learning rate; three to ten times smaller than AdamW's would be. Default 0.0001.
    pub lr: f64,
    /// Decay of the average of gradients, in [0, 1): in the average whose signs a step takes, and in
    /// the one that is kept. Default `[0.9, 0.99]`.
    #[serde(deserialize_with = "exactly")]
    pub betas: [f64; 2],
    /// Share of each parameter, times `lr`, that a step takes away; three to ten times larger
    /// than AdamW's would be. Default 0.
    pub weight_decay: f64,
}

impl Default for LionConfig {
    fn default() -> Self {
        Self {
            lr: 1e-4,
            betas: [0.9, 0.99],
            weight_decay: 0.0,
        }
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
