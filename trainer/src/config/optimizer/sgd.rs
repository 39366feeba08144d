//! Stochastic gradient descent.

use burn::optim;
use burn::optim::momentum::MomentumConfig;
use burn_dist::parallel::{ParameterOptimizer, ParameterSpec};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{AnyOptimizer, rates, weight_decay};
use crate::config::error::Fault;
use crate::config::validate::fraction;

/// `sgd`: stochastic gradient descent.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct SgdConfig {
    /// Learning rate. Default 0.01.
    pub lr: f64,
    /// Share of the last update that is kept, in [0, 1). Default 0: no momentum.
    pub momentum: f64,
    /// Nesterov's form of momentum. Default false.
    pub nesterov: bool,
    /// Multiple of the parameter that is added to its gradient. Default 0.
    pub weight_decay: f64,
}

impl Default for SgdConfig {
    fn default() -> Self {
        Self {
            lr: 0.01,
            momentum: 0.0,
            nesterov: false,
            weight_decay: 0.0,
        }
    }
}

impl AnyOptimizer for SgdConfig {
    rates!();

    fn momentum(&mut self) -> Option<&mut f64> {
        Some(&mut self.momentum)
    }

    fn check(&self) -> Result<(), Fault> {
        fraction("optimizer.momentum", self.momentum)?;
        if self.nesterov && self.momentum == 0.0 {
            let text = "`optimizer.nesterov` needs a momentum";
            return Err(Fault::in_key("optimizer.nesterov", text)
                .help("set optimizer.momentum, for example to 0.9"));
        }
        Ok(())
    }

    fn keeps(&self, parameter: &ParameterSpec) -> u64 {
        match self.momentum > 0.0 {
            true => parameter.num_elements() as u64,
            false => 0,
        }
    }

    fn build(&self) -> ParameterOptimizer {
        let momentum = (self.momentum > 0.0).then_some(MomentumConfig {
            momentum: self.momentum,
            dampening: 0.0,
            nesterov: self.nesterov,
        });
        optim::SgdConfig::new()
            .with_momentum(momentum)
            .with_weight_decay(weight_decay(self.weight_decay))
            .into()
    }
}
