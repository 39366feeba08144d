//! Stochastic gradient descent.

use burn::optim;
use burn::optim::momentum::MomentumConfig;
use burn_dist::parallel::{ParameterOptimizer, ParameterSpec};

use super::{AnyOptimizer, rates, weight_decay};
use crate::config::error::Fault;
use crate::config::section::keys;
use crate::config::validate::fraction;

keys! {
    /// `sgd`: stochastic gradient descent.
    SgdConfig {
        /// Learning rate. Default 0.01.
        lr: f64 = 0.01,
        /// Momentum, in [0, 1). Default 0: no momentum.
        momentum: f64 = 0.0,
        /// Whether to use Nesterov momentum. Default false.
        nesterov: bool = false,
        /// Multiple of the parameter that is added to its gradient. Default 0.
        weight_decay: f64 = 0.0,
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
