//! `[optimizer]` becomes an optimizer.

mod adadelta;

use burn::optim;
use burn::optim::decay::WeightDecayConfig;
use burn::optim::momentum::MomentumConfig;
use burn_dist::parallel::{
    ParameterGroup, ParameterOptimizer, ParameterSpec, is_norm_or_bias, path_matches,
};

pub use adadelta::{Adadelta, AdadeltaState};

use crate::config::OptimizerConfig;

/// The optimizer that `config` describes, with its groups.
pub fn build(config: &OptimizerConfig) -> ParameterOptimizer {
    let mut optimizer = plain(config);
    let spares = !config.decay_norm_and_bias();
    for group in config.groups() {
        let own = config.of_group(group);
        let named = |name: String, only_spared: bool, config: &OptimizerConfig| {
            let pattern = group.pattern.clone();
            let select = move |parameter: &ParameterSpec| {
                path_matches(&pattern, &parameter.path)
                    && (!only_spared || is_norm_or_bias(parameter))
            };
            ParameterGroup::new(name, select, plain(config)).with_lr_factor(group.lr_factor)
        };
        if spares && group.weight_decay.is_none() {
            let name = format!("norms and biases of {}", group.pattern);
            let spared = named(name, true, &own.clone().with_weight_decay(0.0));
            optimizer = optimizer.with_group(spared.or_empty());
        }
        optimizer = optimizer.with_group(named(group.pattern.clone(), false, &own));
    }
    if spares {
        let spared = plain(&config.clone().with_weight_decay(0.0));
        let group = ParameterGroup::new("norms and biases", is_norm_or_bias, spared);
        optimizer = optimizer.with_group(group.or_empty());
    }
    optimizer
}

/// The optimizer without groups. All numbers are set: some of Burn's defaults are not those that
/// published recipes assume.
fn plain(config: &OptimizerConfig) -> ParameterOptimizer {
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
        OptimizerConfig::Adadelta(adadelta) => {
            ParameterOptimizer::new(Adadelta::new(adadelta)).element_wise()
        }
    }
}

fn weight_decay(penalty: f64) -> Option<WeightDecayConfig> {
    (penalty > 0.0).then(|| WeightDecayConfig::new(penalty as f32))
}
