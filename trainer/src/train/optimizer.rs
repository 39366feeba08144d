//! Builds the optimizer of `[optimizer]`, with its parameter groups.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use burn_dist::parallel::{
    ParameterGroup, ParameterOptimizer, ParameterSpec, is_norm_or_bias, path_matches,
};

use crate::config::{GroupConfig, OptimizerConfig};
use crate::error::TrainError;

/// Builds the optimizer of `config` for a model with these parameters.
pub fn build(config: &OptimizerConfig, parameters: &[ParameterSpec]) -> ParameterOptimizer {
    let optimizer = with_configured_groups(config);
    if config.layer_decay == 1.0 {
        return optimizer;
    }
    let layers = layers(parameters);
    let last = layers.values().copied().max().unwrap_or_default();
    let layers = Arc::new(layers);
    (0..=last).fold(config.kind.build(), |all, layer| {
        let layers = layers.clone();
        let select = move |parameter: &ParameterSpec| layers.get(&parameter.path) == Some(&layer);
        let factor = config.layer_decay.powi(last - layer);
        let group = ParameterGroup::new(format!("layer {layer}"), select, optimizer.clone());
        all.with_group(group.with_lr_factor(factor).or_empty())
    })
}

/// The layer of each parameter by path, from 0, the stem.
///
/// A layer is a numbered module with everything in it, such as `blocks.3`. Parameters before the
/// first one belong to the stem, those after it that no number has to the last layer, as in
/// BEiT and MAE. Without numbered modules, each module is a layer.
fn layers(parameters: &[ParameterSpec]) -> HashMap<String, i32> {
    let numbered = |path: &str| {
        let parts: Vec<&str> = path.split('.').collect();
        let is_number = |part: &&str| part.parse::<usize>().is_ok();
        let number = parts.iter().rposition(is_number)?;
        Some(parts[..=number].join("."))
    };
    let any = parameters.iter().any(|own| numbered(&own.path).is_some());
    let layer_of = |path: &str| match any {
        true => numbered(path),
        false => Some(
            path.rsplit_once('.')
                .map_or(path, |parts| parts.0)
                .to_owned(),
        ),
    };
    // The stem is layer 0, so a model without one begins with layer 1.
    let first = i32::from(any);
    let mut known: Vec<String> = Vec::new();
    let mut found = Vec::new();
    for parameter in parameters {
        let layer = layer_of(&parameter.path).map(|own| {
            let position = known.iter().position(|other| *other == own);
            position.unwrap_or_else(|| {
                known.push(own);
                known.len() - 1
            })
        });
        found.push(match layer {
            Some(layer) => Some(first + layer as i32),
            None if known.is_empty() => Some(0),
            None => None,
        });
    }
    let after = first + known.len() as i32;
    let paths = parameters.iter().map(|parameter| parameter.path.clone());
    paths
        .zip(found.into_iter().map(|layer| layer.unwrap_or(after)))
        .collect()
}

/// The optimizer with the groups of the configuration.
fn with_configured_groups(config: &OptimizerConfig) -> ParameterOptimizer {
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
    with_configured_groups(config).check(parameters)?;
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
    use crate::train::model::parameters;

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
        let optimizer = build(config, &parameters(&model));
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
                ..OptimizerKeys::default()
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

    /// Factors of the learning rate as in BEiT and MAE for a ViT, and for models of other shapes.
    #[test]
    fn earlier_layers_are_earlier_blocks() {
        let of = |paths: &[&str]| -> Vec<i32> {
            let spec = |path: &&str| ParameterSpec {
                path: (*path).to_owned(),
                shape: vec![2],
                dtype: burn_dist::DType::F32,
            };
            let found = layers(&paths.iter().map(spec).collect::<Vec<_>>());
            paths.iter().map(|path| found[*path]).collect()
        };
        let vit = [
            "cls_token",
            "patch_embed.proj.weight",
            "blocks.0.attn.qkv.weight",
            "blocks.0.norm1.gamma",
            "blocks.1.mlp.fc1.bias",
            "norm.gamma",
            "head.weight",
        ];
        assert_eq!(of(&vit), [0, 0, 1, 1, 2, 3, 3]);
        let convnext = [
            "stem.conv.weight",
            "stages.0.blocks.0.gamma",
            "stages.1.downsample.conv.weight",
            "stages.1.blocks.0.gamma",
            "head.fc.weight",
        ];
        assert_eq!(of(&convnext), [0, 1, 2, 3, 4]);
        let cnn = ["conv1.weight", "conv1.bias", "conv2.weight", "fc1.weight"];
        assert_eq!(of(&cnn), [0, 0, 1, 2]);
    }

    #[test]
    fn the_rate_falls_towards_the_stem() {
        let config = |layer_decay, groups| OptimizerConfig {
            kind: OptimizerKind::Sgd(SgdConfig {
                weight_decay: 1.0,
                ..SgdConfig::default()
            }),
            keys: OptimizerKeys {
                layer_decay,
                groups,
                ..OptimizerKeys::default()
            },
        };
        // The fields of the model have no numbers, so each is a module of its own.
        for strategy in [Strategy::Ddp, Strategy::Zero1, Strategy::Zero3] {
            let found = after_a_step(&config(0.5, Vec::new()), strategy).unwrap();
            assert_near(
                found,
                [1.0 - 0.1 / 8.0, 1.0 - 0.1 / 4.0, 1.0 - 0.1 / 2.0, 0.9],
            );
        }
        let group = GroupConfig {
            pattern: "head".to_owned(),
            lr_factor: 4.0,
            weight_decay: None,
            momentum: None,
        };
        let found = after_a_step(&config(0.5, vec![group]), Strategy::Ddp).unwrap();
        assert_near(found, [1.0 - 0.1 / 8.0, 1.0 - 0.1 / 4.0, 0.8, 0.9]);
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
