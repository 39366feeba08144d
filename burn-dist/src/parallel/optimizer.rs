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

use super::groups::{self, Choice, ParameterGroup};
use super::{ParallelError, ParameterSpec};

/// An optimizer for single parameters: any of Burn's configurations converts into it, and so does
/// any [`burn::optim::Optimizer`] through [`new`](Self::new).
#[derive(Clone)]
pub struct ParameterOptimizer {
    pub(super) optimizer: Arc<dyn DynOptimizer>,
    /// In the order in which they were added.
    pub(super) groups: Vec<ParameterGroup>,
    /// Whether the configuration asks for Burn's clipping of single tensors.
    pub(super) clips_each_parameter: bool,
}

impl ParameterOptimizer {
    /// Wraps an optimizer that is already built.
    pub fn new(optimizer: impl Optimizer) -> Self {
        Self {
            optimizer: Arc::new(optimizer),
            groups: Vec::new(),
            clips_each_parameter: false,
        }
    }

    /// Steps the parameters of a group in its own way. A parameter that several groups select
    /// belongs to the one that was added first.
    ///
    /// ```
    /// # use burn::optim::AdamWConfig;
    /// # use burn_dist::parallel::{ParameterGroup, ParameterOptimizer, is_norm_or_bias};
    /// let adamw = AdamWConfig::new().with_weight_decay(0.05);
    /// let no_decay = adamw.clone().with_weight_decay(0.0);
    /// let optimizer = ParameterOptimizer::from(adamw).with_group(ParameterGroup::new(
    ///     "norms and biases",
    ///     is_norm_or_bias,
    ///     no_decay,
    /// ));
    /// ```
    #[must_use]
    pub fn with_group(mut self, group: ParameterGroup) -> Self {
        self.clips_each_parameter |= group.clips_each_parameter();
        self.groups.push(group);
        self
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
                    groups: Vec::new(),
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
    /// How each parameter is stepped.
    choices: Vec<Choice>,
    states: Vec<Option<DynState>>,
}

impl OptimizerState {
    pub(super) fn new(
        optimizer: &ParameterOptimizer,
        parameters: &[ParameterSpec],
    ) -> Result<Self, ParallelError> {
        Ok(Self {
            choices: groups::choose(optimizer, parameters)?,
            states: vec![None; parameters.len()],
        })
    }

    /// The optimizer of the parameter with this index.
    pub(super) fn optimizer(&self, index: usize) -> Option<Arc<dyn DynOptimizer>> {
        Some(self.choices.get(index)?.optimizer.clone())
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
        let Some(choice) = self.choices.get(index) else {
            return value;
        };
        let state = self.states.get_mut(index).and_then(Option::take);
        let (value, state) = choice.optimizer.step_dyn(
            D,
            learning_rate * choice.lr_factor,
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
