//! Parameters of a model and the training state kept for each.

use burn::module::{Module, ModuleVisitor, Param};
use burn::tensor::Tensor;
use burn_dist::parallel::{ParameterSpec, ParameterState};

use crate::config::Config;

/// The trainable parameters of `model`, in f32, without running statistics.
///
/// The model is on an autodiff device.
pub fn parameters<M: Module>(model: &M) -> Vec<ParameterSpec> {
    let mut lister = Lister {
        path: Vec::new(),
        parameters: Vec::new(),
    };
    model.visit(&mut lister);
    lister.parameters
}

/// The training state of each of the [`parameters`] of `model`.
///
/// These are the values of its optimizer, and an average if configured.
pub fn states<M: Module>(model: &M, config: &Config) -> Vec<ParameterState> {
    let state = |parameter: &ParameterSpec| {
        let state = config.optimizer.state_of(parameter);
        let averages = if config.averages() { state.elements } else { 0 };
        ParameterState {
            kept: state.kept + averages,
            ..state
        }
    };
    parameters(model).iter().map(state).collect()
}

/// Whether `model` has running statistics of batch normalizations.
pub(crate) fn has_statistics<M: Module>(model: &M) -> bool {
    let mut seek = Seek {
        name: String::new(),
        found: false,
    };
    model.visit(&mut seek);
    seek.found
}

struct Seek {
    /// Name of the innermost field.
    name: String,
    found: bool,
}

impl ModuleVisitor for Seek {
    fn enter_module(&mut self, name: &str, _container_type: &str) {
        name.clone_into(&mut self.name);
    }

    fn visit_float<const D: usize>(&mut self, _param: &Param<Tensor<D>>) {
        self.found |= self.name == "running_mean";
    }
}

struct Lister {
    path: Vec<String>,
    parameters: Vec<ParameterSpec>,
}

impl ModuleVisitor for Lister {
    fn enter_module(&mut self, name: &str, _container_type: &str) {
        self.path.push(name.to_owned());
    }

    fn exit_module(&mut self, _name: &str, _container_type: &str) {
        self.path.pop();
    }

    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        // A lazy parameter is created by the first access, so test before.
        if !param.is_initialized() || param.is_require_grad() {
            self.parameters.push(ParameterSpec {
                path: self.path.join("."),
                shape: param.lazy_shape().to_vec(),
                dtype: burn_dist::DType::F32,
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use burn::tensor::Device;

    use super::*;

    #[test]
    fn averages_are_kept_beside_what_the_optimizer_keeps() {
        let device = Device::flex().autodiff();
        let model = models::CnnConfig::new().init(&device).unwrap();
        let kept = |config: &Config| -> Vec<u64> {
            let states = states(&model, config).into_iter();
            states.map(|state| state.kept).collect()
        };
        let loaded = crate::config::Loaded::load("mnist-cnn.toml", &[]);
        let mut config = loaded.unwrap().config;
        let without = kept(&config);
        config.ema.decay = Some(0.99);
        let elements = states(&model, &config)
            .into_iter()
            .map(|state| state.elements);
        let expected: Vec<u64> = without.iter().zip(elements).map(|(a, b)| a + b).collect();
        assert_eq!(kept(&config), expected);
    }
}
