//! Burn's optimizers, one parameter at a time and chosen at run time.
//!
//! Burn's own module optimizer keeps its state by parameter id, and ids differ between ranks. Here
//! the state lies by index in visit order, and the arithmetic is Burn's, bit for bit.

use std::fmt;
use std::sync::Arc;

use burn::optim::{
    AdaGradConfig, AdafactorConfig, AdamConfig, AdamWConfig, AdanConfig, DynOptimizer, DynState,
    LambConfig, LionConfig, MuonConfig, Optimizer, RmsPropConfig, SgdConfig,
};
use burn::tensor::Tensor;

/// An optimizer for single parameters: any of Burn's configurations converts into it, and so does
/// any [`burn::optim::Optimizer`] through [`new`](Self::new).
#[derive(Clone)]
pub struct ParameterOptimizer {
    optimizer: Arc<dyn DynOptimizer>,
    /// Whether the configuration asks for Burn's clipping of single tensors.
    pub(super) clips_each_parameter: bool,
}

impl ParameterOptimizer {
    /// Wraps an optimizer that is already built.
    pub fn new(optimizer: impl Optimizer) -> Self {
        Self {
            optimizer: Arc::new(optimizer),
            clips_each_parameter: false,
        }
    }
}

impl fmt::Debug for ParameterOptimizer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ParameterOptimizer")
    }
}

macro_rules! from_config {
    ($($config:ty),* $(,)?) => {
        $(impl From<$config> for ParameterOptimizer {
            fn from(config: $config) -> Self {
                Self {
                    optimizer: Arc::new(config.build()),
                    clips_each_parameter: config.init().has_gradient_clipping(),
                }
            }
        })*
    };
}
from_config!(
    AdaGradConfig,
    AdafactorConfig,
    AdamConfig,
    AdamWConfig,
    AdanConfig,
    LambConfig,
    LionConfig,
    MuonConfig,
    RmsPropConfig,
    SgdConfig,
);

/// An optimizer with the state of every parameter.
pub(super) struct OptimizerState {
    optimizer: Arc<dyn DynOptimizer>,
    states: Vec<Option<DynState>>,
}

impl OptimizerState {
    pub(super) fn new(optimizer: ParameterOptimizer, parameters: usize) -> Self {
        Self {
            optimizer: optimizer.optimizer,
            states: vec![None; parameters],
        }
    }

    pub(super) fn optimizer(&self) -> Arc<dyn DynOptimizer> {
        self.optimizer.clone()
    }

    /// The state of the parameter with this index, if it has one yet.
    pub(super) fn state(&self, index: usize) -> Option<DynState> {
        self.states.get(index).cloned().flatten()
    }

    pub(super) fn set_state(&mut self, index: usize, state: Option<DynState>) {
        if let Some(place) = self.states.get_mut(index) {
            *place = state;
        }
    }

    /// The new value of the parameter with this index; both tensors on the same plain device.
    pub(super) fn step<const D: usize>(
        &mut self,
        index: usize,
        learning_rate: f64,
        value: Tensor<D>,
        gradient: Tensor<D>,
    ) -> Tensor<D> {
        let state = self.states.get_mut(index).and_then(Option::take);
        let (value, state) = self.optimizer.step_dyn(
            D,
            learning_rate,
            value.into_bridge(),
            gradient.into_bridge(),
            state,
        );
        if let Some(place) = self.states.get_mut(index) {
            *place = state;
        }
        Tensor::from_bridge(value)
    }
}
