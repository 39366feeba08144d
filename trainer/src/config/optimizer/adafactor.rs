//! Adafactor (Shazeer and Stern 2018, <https://arxiv.org/abs/1804.04235>).

use burn::optim;
use burn_dist::parallel::{ParameterOptimizer, ParameterSpec};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{AnyOptimizer, rates};
use crate::config::error::Fault;
use crate::config::section::exactly;
use crate::config::validate::{ensure, positive};

/// `adafactor`: of matrices it keeps one value per row and column; filters of convolutions are
/// such matrices, over their last two dimensions.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct AdafactorConfig {
    /// Learning rate; with `relative_step` the most that it can be. Default 0.01.
    pub lr: f64,
    /// Exponent, below 0, with which the averages of squared gradients come to forget less and less.
    /// Default -0.8.
    pub beta2_decay: f64,
    /// Added to squared gradients, and the least that a parameter's root mean square counts for.
    /// Default `[1e-30, 0.001]`, as in the paper; PyTorch keeps averages of squares above 1.2e-7 instead.
    #[serde(deserialize_with = "exactly")]
    pub eps: [f64; 2],
    /// Largest root mean square of an update before the learning rate; a larger one is scaled down
    /// to it. Default 1.
    pub clip_threshold: f64,
    /// Whether the rate is at most one over the root of the number of steps. Default true.
    pub relative_step: bool,
    /// Whether updates are multiplied by the parameter's root mean square. Default true.
    pub scale_parameter: bool,
    /// Share of each parameter, times `lr`, that a step takes away. Default 0.
    pub weight_decay: f64,
}

impl Default for AdafactorConfig {
    fn default() -> Self {
        Self {
            lr: 1e-2,
            beta2_decay: -0.8,
            eps: [1e-30, 1e-3],
            clip_threshold: 1.0,
            relative_step: true,
            scale_parameter: true,
            weight_decay: 0.0,
        }
    }
}

impl AnyOptimizer for AdafactorConfig {
    rates!();

    fn check(&self) -> Result<(), Fault> {
        let decay = self.beta2_decay;
        let good = decay.is_finite() && decay < 0.0;
        ensure(good, "optimizer.beta2_decay", decay, "below 0")?;
        for eps in self.eps {
            positive("optimizer.eps", eps)?;
        }
        positive("optimizer.clip_threshold", self.clip_threshold)
    }

    fn keeps(&self, parameter: &ParameterSpec) -> u64 {
        let elements = parameter.num_elements() as u64;
        match parameter.shape.as_slice() {
            [.., rows, columns] if elements > 0 => {
                elements / *columns as u64 + elements / *rows as u64
            }
            _ => elements,
        }
    }

    fn whole(&self, _: &ParameterSpec) -> bool {
        true
    }

    fn build(&self) -> ParameterOptimizer {
        optim::AdafactorConfig::new()
            .with_epsilon_1(self.eps[0] as f32)
            .with_epsilon_2(self.eps[1] as f32)
            .with_clip_threshold(self.clip_threshold as f32)
            .with_decay_rate(self.beta2_decay)
            .with_relative_step(self.relative_step)
            .with_scale_parameter(self.scale_parameter)
            .with_weight_decay(self.weight_decay as f32)
            .into()
    }
}
