//! `[optimizer]`: its keys, and what each optimizer keeps. Those that look at all of a parameter stand in
//! [`super::whole_tensors`].

use burn_dist::parallel::{ParameterSpec, ParameterState, path_matches};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::groups::GroupConfig;
use super::section::exactly;
use super::whole_tensors::{AdafactorConfig, LambConfig, MuonConfig};

/// `[optimizer]`: how gradients change parameters. The keys depend on `name`. Formulas and
/// defaults are PyTorch's where it has the optimizer, but for the default `lr` of SGD, `eps` of Adafactor, and Muon's
/// iteration, which is in f32. LAMB is that of its paper: it clips nothing by itself (`train.clip_norm`), and adapts the
/// size of all parameters' updates.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
#[serde(tag = "name", rename_all = "lowercase")]
pub enum OptimizerConfig {
    /// `sgd`: stochastic gradient descent.
    Sgd(SgdConfig),
    /// `adam`: Adam; weight decay is added to the gradient.
    Adam(AdamConfig),
    /// `adamw`: Adam with decoupled weight decay.
    AdamW(AdamWConfig),
    /// `adadelta`: Adadelta.
    Adadelta(AdadeltaConfig),
    /// `lion`: steps of the same size for all elements, by the signs of averaged gradients.
    Lion(LionConfig),
    /// `lamb`: Adam with updates as large as their parameter, for large batches.
    Lamb(LambConfig),
    /// `adafactor`: of matrices it keeps one value per row and column; filters of convolutions are
    /// such matrices, over their last two dimensions.
    Adafactor(AdafactorConfig),
    /// `muon`: orthogonal updates for matrices, which are parameters with exactly two dimensions.
    /// All others (biases, normalizations, tokens, filters of convolutions) are stepped by AdamW.
    Muon(MuonConfig),
}

/// What all of them have.
macro_rules! of_any {
    ($optimizer:expr, $config:ident => $value:expr) => {
        match $optimizer {
            OptimizerConfig::Sgd($config) => $value,
            OptimizerConfig::Adam($config) => $value,
            OptimizerConfig::AdamW($config) => $value,
            OptimizerConfig::Adadelta($config) => $value,
            OptimizerConfig::Lion($config) => $value,
            OptimizerConfig::Lamb($config) => $value,
            OptimizerConfig::Adafactor($config) => $value,
            OptimizerConfig::Muon($config) => $value,
        }
    };
}

impl OptimizerConfig {
    /// Learning rate before any schedule.
    pub fn lr(&self) -> f64 {
        of_any!(self, config => config.lr)
    }

    /// What it keeps for a parameter, and whether it has to see all of it.
    pub fn state_of(&self, parameter: &ParameterSpec) -> ParameterState {
        let elements = parameter.num_elements() as u64;
        let mut groups = self.groups().iter();
        let group = groups.find(|group| path_matches(&group.pattern, &parameter.path));
        let own = group.map_or_else(|| self.clone(), |group| self.of_group(group));
        let (kept, whole) = match &own {
            Self::Sgd(sgd) if sgd.momentum > 0.0 => (elements, false),
            Self::Sgd(_) => (0, false),
            Self::Lion(_) => (elements, false),
            Self::Lamb(_) => (2 * elements, true),
            Self::Adafactor(_) => match parameter.shape.as_slice() {
                [.., rows, columns] if elements > 0 => {
                    let (rows, columns) = (*rows as u64, *columns as u64);
                    (elements / columns + elements / rows, true)
                }
                _ => (elements, true),
            },
            Self::Muon(muon) if !muon.leaves_to_adamw(parameter) => (elements, true),
            _ => (2 * elements, false),
        };
        ParameterState {
            elements,
            kept,
            whole,
        }
    }

    /// Whether weight decay applies to norms and biases too.
    pub fn decay_norm_and_bias(&self) -> bool {
        of_any!(self, config => config.decay_norm_and_bias)
    }

    /// Other settings for some of the parameters.
    pub fn groups(&self) -> &[GroupConfig] {
        of_any!(self, config => &config.groups)
    }

    /// Weight decay.
    pub fn weight_decay(&self) -> f64 {
        of_any!(self, config => config.weight_decay)
    }

    /// The same with another weight decay.
    pub fn with_weight_decay(mut self, decay: f64) -> Self {
        of_any!(&mut self, config => config.weight_decay = decay);
        self
    }

    /// The settings of the parameters in `group`.
    pub fn of_group(&self, group: &GroupConfig) -> Self {
        let mut own = self.clone();
        if let Some(decay) = group.weight_decay {
            own = own.with_weight_decay(decay);
        }
        if let (Self::Sgd(config), Some(momentum)) = (&mut own, group.momentum) {
            config.momentum = momentum;
        }
        own
    }
}

/// `[optimizer] name = "sgd"`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct SgdConfig {
    /// Learning rate. Default 0.01.
    pub lr: f64,
    /// Share of the last update that is kept, in [0, 1). Default 0: no momentum.
    pub momentum: f64,
    /// Nesterov's form of momentum. Default false.
    pub nesterov: bool,
    /// Multiple of the parameter that is added to its gradient. Default 0.
    pub weight_decay: f64,
    /// Whether weight decay takes from biases, the scales and offsets of normalizations, and the
    /// learned tokens and positions of transformers too, as PyTorch's optimizers do when nothing is
    /// said. Default true.
    pub decay_norm_and_bias: bool,
    /// Other settings for some of the parameters: tables `[[optimizer.groups]]` with the key
    /// `match`, a pattern for whole paths of parameters in which `*` stands for any characters and
    /// `?` for one, and `lr_factor` (a multiple of the learning rate), `weight_decay` or `momentum`.
    /// The first that matches a parameter counts. Default none.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub groups: Vec<GroupConfig>,
}

impl Default for SgdConfig {
    fn default() -> Self {
        Self {
            lr: 0.01,
            momentum: 0.0,
            nesterov: false,
            weight_decay: 0.0,
            decay_norm_and_bias: true,
            groups: Vec::new(),
        }
    }
}

/// `[optimizer] name = "adam"`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct AdamConfig {
    /// Learning rate. Default 0.001.
    pub lr: f64,
    /// Decay of the averages of the gradient and its square, in [0, 1). Default `[0.9, 0.999]`.
    #[serde(deserialize_with = "exactly")]
    pub betas: [f64; 2],
    /// Added to the denominator. Default 1e-8.
    pub eps: f64,
    /// Multiple of the parameter that is added to its gradient. Default 0.
    pub weight_decay: f64,
    /// Whether weight decay takes from biases, the scales and offsets of normalizations, and the
    /// learned tokens and positions of transformers too, as PyTorch's optimizers do when nothing is
    /// said. Default true.
    pub decay_norm_and_bias: bool,
    /// Other settings for some of the parameters: tables `[[optimizer.groups]]` with the key
    /// `match`, a pattern for whole paths of parameters in which `*` stands for any characters and
    /// `?` for one, and `lr_factor` (a multiple of the learning rate), `weight_decay` or `momentum`.
    /// The first that matches a parameter counts. Default none.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub groups: Vec<GroupConfig>,
}

impl Default for AdamConfig {
    fn default() -> Self {
        Self {
            lr: 1e-3,
            betas: [0.9, 0.999],
            eps: 1e-8,
            weight_decay: 0.0,
            decay_norm_and_bias: true,
            groups: Vec::new(),
        }
    }
}

/// `[optimizer] name = "adamw"`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct AdamWConfig {
    /// Learning rate. Default 0.001.
    pub lr: f64,
    /// Decay of the averages of the gradient and its square, in [0, 1). Default `[0.9, 0.999]`.
    #[serde(deserialize_with = "exactly")]
    pub betas: [f64; 2],
    /// Added to the denominator. Default 1e-8.
    pub eps: f64,
    /// Share of each parameter, times `lr`, that a step takes away. Default 0.01.
    pub weight_decay: f64,
    /// Whether weight decay takes from biases, the scales and offsets of normalizations, and the
    /// learned tokens and positions of transformers too, as PyTorch's optimizers do when nothing is
    /// said. Default true.
    pub decay_norm_and_bias: bool,
    /// Other settings for some of the parameters: tables `[[optimizer.groups]]` with the key
    /// `match`, a pattern for whole paths of parameters in which `*` stands for any characters and
    /// `?` for one, and `lr_factor` (a multiple of the learning rate), `weight_decay` or `momentum`.
    /// The first that matches a parameter counts. Default none.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub groups: Vec<GroupConfig>,
}

impl Default for AdamWConfig {
    fn default() -> Self {
        Self {
            lr: 1e-3,
            betas: [0.9, 0.999],
            eps: 1e-8,
            weight_decay: 0.01,
            decay_norm_and_bias: true,
            groups: Vec::new(),
        }
    }
}

/// `[optimizer] name = "adadelta"`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct AdadeltaConfig {
    /// Learning rate. Default 1.
    pub lr: f64,
    /// Decay of the averages of squared gradients and squared updates, in [0, 1). Default 0.9.
    pub rho: f64,
    /// Added under both square roots. Default 1e-6.
    pub eps: f64,
    /// Multiple of the parameter that is added to its gradient. Default 0.
    pub weight_decay: f64,
    /// Whether weight decay takes from biases, the scales and offsets of normalizations, and the
    /// learned tokens and positions of transformers too, as PyTorch's optimizers do when nothing is
    /// said. Default true.
    pub decay_norm_and_bias: bool,
    /// Other settings for some of the parameters: tables `[[optimizer.groups]]` with the key
    /// `match`, a pattern for whole paths of parameters in which `*` stands for any characters and
    /// `?` for one, and `lr_factor` (a multiple of the learning rate), `weight_decay` or `momentum`.
    /// The first that matches a parameter counts. Default none.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub groups: Vec<GroupConfig>,
}

impl Default for AdadeltaConfig {
    fn default() -> Self {
        Self {
            lr: 1.0,
            rho: 0.9,
            eps: 1e-6,
            weight_decay: 0.0,
            decay_norm_and_bias: true,
            groups: Vec::new(),
        }
    }
}

/// `[optimizer] name = "lion"` (Chen et al. 2023, <https://arxiv.org/abs/2302.06675>).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct LionConfig {
    /// Learning rate; three to ten times smaller than AdamW's would be. Default 0.0001.
    pub lr: f64,
    /// Decay of the average of gradients, in [0, 1): in the average whose signs a step takes, and in
    /// the one that is kept. Default `[0.9, 0.99]`.
    #[serde(deserialize_with = "exactly")]
    pub betas: [f64; 2],
    /// Share of each parameter, times `lr`, that a step takes away; three to ten times larger
    /// than AdamW's would be. Default 0.
    pub weight_decay: f64,
    /// Whether weight decay takes from biases, the scales and offsets of normalizations, and the
    /// learned tokens and positions of transformers too. Default true.
    pub decay_norm_and_bias: bool,
    /// Other settings for some of the parameters: tables `[[optimizer.groups]]` with the key
    /// `match`, a pattern for whole paths of parameters in which `*` stands for any characters and
    /// `?` for one, and `lr_factor` (a multiple of the learning rate) or `weight_decay`. The first
    /// that matches a parameter counts. Default none.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub groups: Vec<GroupConfig>,
}

impl Default for LionConfig {
    fn default() -> Self {
        Self {
            lr: 1e-4,
            betas: [0.9, 0.99],
            weight_decay: 0.0,
            decay_norm_and_bias: true,
            groups: Vec::new(),
        }
    }
}
