//! Builds the optimizer of `[optimizer]`, with its parameter groups.

use std::collections::HashSet;

use burn_dist::parallel::{
    ParameterGroup, ParameterOptimizer, ParameterSpec, is_norm_or_bias, path_matches,
};

use crate::config::{GroupConfig, OptimizerConfig};
use crate::error::TrainError;

/// Builds the optimizer of `config` with its groups.
pub fn build(config: &OptimizerConfig) -> ParameterOptimizer {
    let mut optimizer = config.kind.build();
    let spares = !config.decay_norm_and_bias;
    for group in &config.groups {
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
    with_groups(optimizer, config.kind.others())
}

/// Checks the optimizer of `config` against the parameters.
///
/// # Errors
/// Fails if the optimizer cannot step these parameters, or if a group has no parameter.
pub fn check(config: &OptimizerConfig, parameters: &[ParameterSpec]) -> Result<(), TrainError> {
    build(config).check(parameters)?;
    let groups = &config.groups;
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

/// Builds the optimizer without its groups.
fn plain(config: &OptimizerConfig) -> ParameterOptimizer {
    with_groups(config.kind.build(), config.kind.others())
}

#[cfg(test)]
mod tests {
    use burn::module::{Module, Param};
    use burn::tensor::{Device, Tensor};
    use burn_dist::ProcessGroup;
    use burn_dist::parallel::{Parallel, ParallelError, Strategy};

    use super::*;
    use crate::config::{MuonConfig, OptimizerKeys, OptimizerKind, SgdConfig};

    #[derive(Module, Debug)]
    struct Model {
        weight: Param<Tensor<2>>,
        bias: Param<Tensor<1>>,
        head: Param<Tensor<2>>,
        filters: Param<Tensor<4>>,
    }

    /// Parameters that were 1, after a step with zero gradients: only weight decay changes them.
    fn after_a_step(
        config: &OptimizerConfig,
        strategy: Strategy,
    ) -> Result<[f32; 4], ParallelError> {
        let device = Device::flex().autodiff();
        let model = Model {
            weight: Param::from_tensor(Tensor::ones([2, 3], &device)),
            bias: Param::from_tensor(Tensor::ones([3], &device)),
            head: Param::from_tensor(Tensor::ones([3, 2], &device)),
            filters: Param::from_tensor(Tensor::ones([2, 1, 3, 3], &device)),
        };
        let optimizer = build(config);
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

    fn muon() -> MuonConfig {
        MuonConfig {
            lr: 0.1,
            weight_decay: 0.5,
            adamw_lr: Some(0.02),
            ..MuonConfig::default()
        }
    }

    #[track_caller]
    fn assert_near(found: [f32; 4], expected: [f32; 4]) {
        for (found, expected) in found.iter().zip(expected) {
            assert!((found - expected).abs() < 1e-6, "{found} {expected}");
        }
    }

    #[test]
    fn muon_leaves_to_adamw_what_is_no_matrix_or_named() {
        let muon = OptimizerConfig {
            kind: OptimizerKind::Muon(MuonConfig {
                adamw_match: vec!["head".to_owned()],
                ..muon()
            }),
            keys: OptimizerKeys::default(),
        };
        for strategy in [Strategy::Ddp, Strategy::Zero1, Strategy::Zero3] {
            let found = after_a_step(&muon, strategy).unwrap();
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
        let with = |muon| OptimizerConfig {
            kind: OptimizerKind::Muon(muon),
            keys: OptimizerKeys {
                decay_norm_and_bias: false,
                groups: vec![group("weight", 2.0, None), group("filters", 2.0, Some(1.0))],
            },
        };
        let found = after_a_step(&with(muon()), Strategy::Ddp).unwrap();
        assert_near(found, [0.9, 1.0, 0.95, 0.96]);
        let misspelt = MuonConfig {
            adamw_match: vec!["haed".to_owned()],
            ..muon()
        };
        let error = after_a_step(&with(misspelt), Strategy::Ddp).unwrap_err();
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
        let with = |patterns: [&str; 2]| OptimizerConfig {
            kind: OptimizerKind::Sgd(SgdConfig::default()),
            keys: OptimizerKeys {
                groups: patterns.map(group).into(),
                ..OptimizerKeys::default()
            },
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
