//! Freezes the parameters that `model.freeze` names: they keep their values.

use burn::module::{Module, ModuleMapper, Param};
use burn::tensor::Tensor;
use burn_dist::parallel::path_matches;

use crate::config::Config;
use crate::error::TrainError;
use crate::train::model::parameters;

/// Freezes parameters of `model`, which is on an autodiff device.
///
/// # Errors
/// [`TrainError::NothingFrozen`] if a pattern matches no parameter, and
/// [`TrainError::AllFrozen`] if none is left to train.
pub(crate) fn apply<M: Module>(model: M, config: &Config) -> Result<M, TrainError> {
    let patterns = &config.model.freeze;
    if patterns.is_empty() {
        return Ok(model);
    }
    let paths: Vec<String> = parameters(&model).into_iter().map(|own| own.path).collect();
    let unused = |pattern: &&String| !paths.iter().any(|path| path_matches(pattern, path));
    if let Some(pattern) = patterns.iter().find(unused) {
        return Err(TrainError::NothingFrozen {
            pattern: pattern.clone(),
            paths: paths.into_iter().take(PATHS_SHOWN).collect(),
        });
    }
    let frozen = |path: &String| patterns.iter().any(|pattern| path_matches(pattern, path));
    if paths.iter().all(frozen) {
        return Err(TrainError::AllFrozen);
    }
    Ok(model.map(&mut Freeze {
        path: Vec::new(),
        patterns,
    }))
}

/// Number of paths that an error lists.
const PATHS_SHOWN: usize = 12;

struct Freeze<'a> {
    path: Vec<String>,
    patterns: &'a [String],
}

impl ModuleMapper for Freeze<'_> {
    fn enter_module(&mut self, name: &str, _container_type: &str) {
        self.path.push(name.to_owned());
    }

    fn exit_module(&mut self, _name: &str, _container_type: &str) {
        self.path.pop();
    }

    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        let path = self.path.join(".");
        let is_frozen = self
            .patterns
            .iter()
            .any(|pattern| path_matches(pattern, &path));
        if !is_frozen {
            return param;
        }
        // A lazy parameter would still pass for a trainable one.
        drop(param.val());
        param.set_require_grad(false)
    }
}

#[cfg(test)]
mod tests {
    use burn::tensor::Device;

    use super::*;
    use crate::config::Loaded;

    fn frozen(patterns: &str) -> Result<Vec<String>, TrainError> {
        let set = format!("model.freeze={patterns}");
        let config = Loaded::load("mnist-cnn.toml", &[set]).unwrap().config;
        let device = Device::flex().autodiff();
        let model = models::CnnConfig::new().init(&device).unwrap();
        let model = apply(model, &config)?;
        Ok(parameters(&model).into_iter().map(|own| own.path).collect())
    }

    #[test]
    fn what_is_frozen_is_no_parameter_any_more() {
        let all = frozen("[]").unwrap();
        assert_eq!(all.len(), 8);
        let head = ["fc1.bias", "fc2.weight", "fc2.bias"];
        let mut left = frozen("[\"conv?.*\", \"fc1.weight\"]").unwrap();
        left.sort();
        let mut head = head.map(str::to_owned).to_vec();
        head.sort();
        assert_eq!(left, head);
    }

    #[test]
    fn patterns_without_effect_are_refused() {
        let error = frozen("[\"conv1.*\", \"blocks.*\"]").unwrap_err();
        assert!(error.to_string().contains("`blocks.*`"), "{error}");
        assert!(error.to_string().contains("conv1.weight"), "{error}");
        let error = frozen("[\"*\"]").unwrap_err();
        assert!(error.to_string().contains("nothing is left"), "{error}");
    }
}
