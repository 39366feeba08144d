//! `[optimizer]` becomes an optimizer.

mod adadelta;

use burn::optim;
use burn::optim::decay::WeightDecayConfig;
use burn::optim::momentum::MomentumConfig;
use burn_dist::parallel::ParameterOptimizer;

pub use adadelta::{Adadelta, AdadeltaState};

use crate::config::OptimizerConfig;

/// The optimizer that `config` describes. All numbers are set: some of Burn's defaults are not
/// those that published recipes assume.
pub fn build(config: &OptimizerConfig) -> ParameterOptimizer {
    match config {
        OptimizerConfig::Sgd(sgd) => {
            let momentum = (sgd.momentum > 0.0).then_some(MomentumConfig {
                momentum: sgd.momentum,
                dampening: 0.0,
                nesterov: sgd.nesterov,
            });
            optim::SgdConfig::new()
                .with_momentum(momentum)
                .with_weight_decay(weight_decay(sgd.weight_decay))
                .into()
        }
        OptimizerConfig::Adam(adam) => optim::AdamConfig::new()
            .with_beta_1(adam.betas[0] as f32)
            .with_beta_2(adam.betas[1] as f32)
            .with_epsilon(adam.eps as f32)
            .with_weight_decay(weight_decay(adam.weight_decay))
            .into(),
        OptimizerConfig::AdamW(adamw) => optim::AdamWConfig::new()
            .with_beta_1(adamw.betas[0] as f32)
            .with_beta_2(adamw.betas[1] as f32)
            .with_epsilon(adamw.eps as f32)
            .with_weight_decay(adamw.weight_decay as f32)
            .into(),
        OptimizerConfig::Adadelta(adadelta) => ParameterOptimizer::new(Adadelta::new(adadelta)),
    }
}

fn weight_decay(penalty: f64) -> Option<WeightDecayConfig> {
    (penalty > 0.0).then(|| WeightDecayConfig::new(penalty as f32))
}
