//! `[optimizer]` becomes an optimizer.

mod adadelta;
mod muon;

use std::collections::HashSet;

use burn::optim;
use burn::optim::decay::WeightDecayConfig;
use burn::optim::momentum::MomentumConfig;
use burn_dist::parallel::{
    ParameterGroup, ParameterOptimizer, ParameterSpec, is_norm_or_bias, path_matches,
};

pub use adadelta::{Adadelta, AdadeltaState};
pub use muon::Muon;

use crate::config::{AdjustLr, GroupConfig, MuonConfig, OptimizerConfig};
use crate::error::TrainError;

/// The optimizer that `config` describes, with its groups.
pub fn build(config: &OptimizerConfig) -> ParameterOptimizer {
    let (mut optimizer, last) = parts(config);
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
    with_groups(optimizer, last)
}

/// Whether the optimizer that `config` describes can step a model with these parameters, and every group of the
/// configuration has a parameter.
///
/// # Errors
/// If not.
pub fn check(config: &OptimizerConfig, parameters: &[ParameterSpec]) -> Result<(), TrainError> {
    build(config).check(parameters)?;
    let groups = config.groups();
    let group_of = |parameter: &ParameterSpec| {
        let matches = |group: &GroupConfig| path_matches(&group.pattern, &parameter.path);
        groups.iter().position(matches)
    };
    let taken: HashSet<usize> = parameters.iter().filter_map(group_of).collect();
    match (0..groups.len()).find(|index| !taken.contains(index)) {
        None => Ok(()),
        Some(index) => Err(TrainError::GroupTaken {
            group: groups[index].pattern.clone(),
        }),
    }
}

fn with_groups(optimizer: ParameterOptimizer, groups: Vec<ParameterGroup>) -> ParameterOptimizer {
    groups
        .into_iter()
        .fold(optimizer, ParameterOptimizer::with_group)
}

/// The optimizer without the groups of the configuration.
fn plain(config: &OptimizerConfig) -> ParameterOptimizer {
    let (optimizer, groups) = parts(config);
    with_groups(optimizer, groups)
}

/// An optimizer, and groups of what it does not step itself, which come after all others. All
/// numbers are set: some of Burn's defaults are not those that published recipes assume.
fn parts(config: &OptimizerConfig) -> (ParameterOptimizer, Vec<ParameterGroup>) {
    let optimizer = match config {
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
        OptimizerConfig::Lion(lion) => optim::LionConfig::new()
            .with_beta_1(lion.betas[0] as f32)
            .with_beta_2(lion.betas[1] as f32)
            .with_weight_decay(lion.weight_decay as f32)
            .into(),
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
        OptimizerConfig::Muon(muon) => return of_muon(muon),
    };
    (optimizer, Vec::new())
}

/// Muon for matrices, AdamW for the rest.
fn of_muon(muon: &MuonConfig) -> (ParameterOptimizer, Vec<ParameterGroup>) {
    let adamw = optim::AdamWConfig::new()
        .with_beta_1(muon.adamw_betas[0] as f32)
        .with_beta_2(muon.adamw_betas[1] as f32)
        .with_epsilon(muon.adamw_eps as f32)
        .with_weight_decay(muon.weight_decay as f32);
    let rate = muon.adamw_lr() / muon.lr;
    let named = |pattern: &String| {
        let (name, pattern) = (pattern.clone(), pattern.clone());
        let select = move |parameter: &ParameterSpec| path_matches(&pattern, &parameter.path);
        ParameterGroup::new(name, select, adamw.clone()).with_lr_factor(rate)
    };
    let mut left: Vec<_> = muon.adamw_match.iter().map(named).collect();
    let no_matrix = |parameter: &ParameterSpec| parameter.shape.len() != 2;
    let no_matrices = ParameterGroup::new("what is no matrix", no_matrix, adamw.clone());
    left.push(no_matrices.with_lr_factor(rate).or_empty());
    let matrices = match muon.adjust_lr {
        // Of which ranks compare no settings; but they have compared their configurations.
        AdjustLr::Original => ParameterOptimizer::new(Muon::new(muon)),
        AdjustLr::MatchRmsAdamW => muon::burn(muon)
            .with_adjust_lr_fn(optim::AdjustLrFn::MatchRmsAdamW)
            .with_weight_decay(weight_decay(muon.weight_decay))
            .into(),
    };
    (matrices, left)
}

fn weight_decay(penalty: f64) -> Option<WeightDecayConfig> {
    (penalty > 0.0).then(|| WeightDecayConfig::new(penalty as f32))
}

#[cfg(test)]
mod tests {
    use burn::module::{Module, Param};
    use burn::tensor::{Device, Tensor};
    use burn_dist::ProcessGroup;
    use burn_dist::parallel::{Parallel, ParallelError, Strategy};

    use super::*;
    use crate::config::GroupConfig;

    #[derive(Module, Debug)]
    struct Model {
        weight: Param<Tensor<2>>,
        bias: Param<Tensor<1>>,
        head: Param<Tensor<2>>,
        filters: Param<Tensor<4>>,
    }

    /// What a step without a gradient leaves of parameters that were 1: only weight decay changes
    /// them.
    fn after_a_step(config: MuonConfig, strategy: Strategy) -> Result<[f32; 4], ParallelError> {
        let device = Device::flex().autodiff();
        let model = Model {
            weight: Param::from_tensor(Tensor::ones([2, 3], &device)),
            bias: Param::from_tensor(Tensor::ones([3], &device)),
            head: Param::from_tensor(Tensor::ones([3, 2], &device)),
            filters: Param::from_tensor(Tensor::ones([2, 1, 3, 3], &device)),
        };
        let optimizer = build(&OptimizerConfig::Muon(config));
        let mut parallel = Parallel::new(model, optimizer, strategy, &ProcessGroup::single())?;
        let model = parallel.model();
        let sum = model.weight.val().sum() + model.bias.val().sum() + model.head.val().sum();
        let loss = (sum + model.filters.val().sum()) * 0.0;
        parallel.backward(loss)?;
        parallel.step(0.1)?;
        let model = parallel.valid()?;
        let all = [
            model.weight.val().mean(),
            model.bias.val().mean(),
            model.head.val().mean(),
            model.filters.val().mean(),
        ];
        Ok(all.map(|mean| mean.into_scalar::<f32>()))
    }

    #[track_caller]
    fn assert_near(found: [f32; 4], expected: [f32; 4]) {
        for (found, expected) in found.iter().zip(expected) {
            assert!((found - expected).abs() < 1e-6, "{found} {expected}");
        }
    }

    #[test]
    fn muon_leaves_to_adamw_what_is_no_matrix_or_named() {
        let muon = MuonConfig {
            lr: 0.1,
            weight_decay: 0.5,
            adamw_lr: Some(0.02),
            adamw_match: vec!["head".to_owned()],
            ..MuonConfig::default()
        };
        for strategy in [Strategy::Ddp, Strategy::Zero1, Strategy::Zero3] {
            let found = after_a_step(muon.clone(), strategy).unwrap();
            assert_near(found, [0.95, 0.99, 0.99, 0.99]);
        }
    }

    #[test]
    fn groups_of_the_configuration_come_before_that() {
        let group = |pattern: &str, lr_factor, weight_decay| GroupConfig {
            pattern: pattern.to_owned(),
            lr_factor,
            weight_decay,
            momentum: None,
        };
        let muon = MuonConfig {
            lr: 0.1,
            weight_decay: 0.5,
            adamw_lr: Some(0.02),
            decay_norm_and_bias: false,
            groups: vec![group("weight", 2.0, None), group("filters", 2.0, Some(1.0))],
            ..MuonConfig::default()
        };
        let found = after_a_step(muon.clone(), Strategy::Ddp).unwrap();
        assert_near(found, [0.9, 1.0, 0.95, 0.96]);
        let misspelt = MuonConfig {
            adamw_match: vec!["haed".to_owned()],
            ..muon
        };
        let error = after_a_step(misspelt, Strategy::Ddp).unwrap_err();
        assert!(error.to_string().contains("`haed`"), "{error}");
    }

    #[test]
    fn a_group_whose_parameters_all_belong_to_groups_before_it_is_refused() {
        let group = |pattern: &str| GroupConfig {
            pattern: pattern.to_owned(),
            lr_factor: 2.0,
            weight_decay: None,
            momentum: None,
        };
        let with = |patterns: [&str; 2]| {
            OptimizerConfig::Sgd(crate::config::SgdConfig {
                groups: patterns.map(group).into(),
                ..Default::default()
            })
        };
        let parameters = ["head.weight", "head.bias", "body.bias"].map(|path| ParameterSpec {
            path: path.to_owned(),
            shape: vec![2],
            dtype: burn_dist::DType::F32,
        });
        assert!(check(&with(["head.*", "*.bias"]), &parameters).is_ok());
        let error = check(&with(["head.*", "head.bias"]), &parameters).unwrap_err();
        assert!(error.to_string().contains("`head.bias`"), "{error}");
        let error = check(&with(["head.*", "tail.*"]), &parameters).unwrap_err();
        assert!(error.to_string().contains("`tail.*`"), "{error}");
    }
}
