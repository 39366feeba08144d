//! `[optimizer]` becomes an optimizer.

mod adadelta;

use burn::optim;
use burn::optim::decay::WeightDecayConfig;
use burn::optim::momentum::MomentumConfig;
use burn_dist::parallel::{
    ParameterGroup, ParameterOptimizer, ParameterSpec, is_norm_or_bias, path_matches,
};

pub use adadelta::{Adadelta, AdadeltaState};

use crate::config::{AdjustLr, MuonConfig, OptimizerConfig};

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
        OptimizerConfig::Lamb(lamb) => optim::LambConfig::new()
            .with_beta_1(lamb.betas[0] as f32)
            .with_beta_2(lamb.betas[1] as f32)
            .with_epsilon(lamb.eps as f32)
            .with_weight_decay(lamb.weight_decay as f32)
            .into(),
        OptimizerConfig::Adafactor(adafactor) => optim::AdafactorConfig::new()
            .with_epsilon_1(adafactor.eps[0] as f32)
            .with_epsilon_2(adafactor.eps[1] as f32)
            .with_clip_threshold(adafactor.clip_threshold as f32)
            .with_decay_rate(adafactor.beta2_decay)
            .with_relative_step(adafactor.relative_step)
            .with_scale_parameter(adafactor.scale_parameter)
            .with_weight_decay(adafactor.weight_decay as f32)
            .into(),
        OptimizerConfig::Muon(muon) => of_muon(muon),
    }
}

/// Muon for matrices, AdamW for the rest.
fn of_muon(muon: &MuonConfig) -> ParameterOptimizer {
    let adamw = optim::AdamWConfig::new()
        .with_beta_1(muon.adamw_betas[0] as f32)
        .with_beta_2(muon.adamw_betas[1] as f32)
        .with_epsilon(muon.adamw_eps as f32)
        .with_weight_decay(muon.weight_decay as f32);
    let config = muon.clone();
    let left = move |parameter: &ParameterSpec| config.leaves_to_adamw(parameter);
    let left = ParameterGroup::new("what Muon leaves to AdamW", left, adamw)
        .with_lr_factor(muon.adamw_lr() / muon.lr);
    let matrices = optim::MuonConfig::new()
        .with_momentum(MomentumConfig {
            momentum: muon.momentum,
            dampening: 0.0,
            nesterov: muon.nesterov,
        })
        .with_ns_steps(usize::try_from(muon.ns_steps).unwrap_or(usize::MAX))
        .with_epsilon(muon.eps as f32)
        .with_adjust_lr_fn(match muon.adjust_lr {
            AdjustLr::Original => optim::AdjustLrFn::Original,
            AdjustLr::MatchRmsAdamW => optim::AdjustLrFn::MatchRmsAdamW,
        })
        .with_weight_decay(weight_decay(muon.weight_decay));
    ParameterOptimizer::from(matrices).with_group(left.or_empty())
}

fn weight_decay(penalty: f64) -> Option<WeightDecayConfig> {
    (penalty > 0.0).then(|| WeightDecayConfig::new(penalty as f32))
}
