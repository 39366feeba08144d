//! Adafactor (Shazeer and Stern 2018, <https://arxiv.org/abs/1804.04235>).

use burn::optim;
use burn_dist::parallel::{ParameterOptimizer, ParameterSpec};

use super::{AnyOptimizer, rates};
use crate::config::error::Fault;
use crate::config::section::{exactly, keys};
use crate::config::validate::{ensure, positive};

keys! {
    /// `adafactor`: one value per row and column of each matrix; convolution filters are matrices
    /// over their last two dimensions.
    AdafactorConfig {
        /// Learning rate; with `relative_step` its maximum. Default 0.01.
        lr: f64 = 1e-2,
        /// Exponent of the decay of averaged squared gradients, below 0: later steps forget less.
        /// Default -0.8.
        beta2_decay: f64 = -0.8,
        /// Value added to squared gradients, and the minimum of a parameter's root mean square.
        /// Default `[1e-30, 0.001]`, as in the paper; PyTorch keeps averages of squares above
        /// 1.2e-7 instead.
        #[serde(deserialize_with = "exactly")]
        eps: [f64; 2] = [1e-30, 1e-3],
        /// Maximum root mean square of an update before the learning rate; larger updates are
        /// scaled down. Default 1.
        clip_threshold: f64 = 1.0,
        /// Whether the learning rate is at most 1/√steps. Default true.
        relative_step: bool = true,
        /// Whether updates are multiplied by the parameter's root mean square. Default true.
        scale_parameter: bool = true,
        /// Weight decay: each step subtracts this share of the parameter, times `lr`. Default 0.
        weight_decay: f64 = 0.0,
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
