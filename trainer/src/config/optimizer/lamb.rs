//! Adam with updates as large as their parameter.

use burn::optim;
use burn_dist::parallel::{ParameterOptimizer, ParameterSpec};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{AnyOptimizer, moments, rates};
use crate::config::error::Fault;
use crate::config::section::exactly;

/// `lamb`: Adam with updates as large as their parameter, for large batches.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct LambConfig {
    /// Learning rate. Default 0.001.
    pub lr: f64,
    /// Decay of the averages of the gradient and its square, in [0, 1). Default `[0.9, 0.999]`.
    #[serde(deserialize_with = "exactly")]
    pub betas: [f64; 2],
    /// Added to the denominator. Default 1e-6.
    pub eps: f64,
    /// Multiple of the parameter that is added to its update, before its size is adapted. Default
    /// 0.01.
    pub weight_decay: f64,
}

impl Default for LambConfig {
    fn default() -> Self {
        Self {
            lr: 1e-3,
            betas: [0.9, 0.999],
            eps: 1e-6,
            weight_decay: 0.01,
        }
    }
}

impl AnyOptimizer for LambConfig {
    rates!();

    fn check(&self) -> Result<(), Fault> {
        moments(self.betas, self.eps)
    }

    fn keeps(&self, parameter: &ParameterSpec) -> u64 {
        2 * parameter.num_elements() as u64
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
