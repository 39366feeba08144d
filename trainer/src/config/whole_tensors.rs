//! The optimizers of `[optimizer]` whose step looks at all of a parameter: under ZeRO every rank has
//! whole parameters of theirs.

use burn_dist::parallel::{ParameterSpec, path_matches};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::groups::GroupConfig;
use super::section::{exactly, names};

/// `[optimizer] name = "lamb"`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct LambConfig {
    /// Learning rate. Default 0.001.
    pub lr: f64,
    /// Decay of the averages of the gradient and its square, in [0, 1). Default `[0.9, 0.999]`.
    #[serde(deserialize_with = "exactly")]
    pub betas: [f64; 2],
    /// Added to the denominator. Default 1e-6.
    pub eps: f64,
    /// Multiple of the parameter that is added to its update, before its size is adapted. Default
    /// 0.01.
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

impl Default for LambConfig {
    fn default() -> Self {
        Self {
            lr: 1e-3,
            betas: [0.9, 0.999],
            eps: 1e-6,
            weight_decay: 0.01,
            decay_norm_and_bias: true,
            groups: Vec::new(),
        }
    }
}

/// `[optimizer] name = "adafactor"`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct AdafactorConfig {
    /// Learning rate; with `relative_step` the most that it can be. Default 0.01.
    pub lr: f64,
    /// Exponent, below 0, with which the averages of squared gradients come to forget less and less.
    /// Default -0.8.
    pub beta2_decay: f64,
    /// Added to squared gradients, and the least that a parameter's root mean square counts for.
    /// Default `[1e-30, 0.001]`, as in the paper; PyTorch keeps averages of squares above 1.2e-7 instead.
    #[serde(deserialize_with = "exactly")]
    pub eps: [f64; 2],
    /// Largest root mean square of an update before the learning rate; a larger one is scaled down
    /// to it. Default 1.
    pub clip_threshold: f64,
    /// Whether the rate is at most one over the root of the number of steps. Default true.
    pub relative_step: bool,
    /// Whether updates are multiplied by the parameter's root mean square. Default true.
    pub scale_parameter: bool,
    /// Share of each parameter, times `lr`, that a step takes away. Default 0.
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

impl Default for AdafactorConfig {
    fn default() -> Self {
        Self {
            lr: 1e-2,
            beta2_decay: -0.8,
            eps: [1e-30, 1e-3],
            clip_threshold: 1.0,
            relative_step: true,
            scale_parameter: true,
            weight_decay: 0.0,
            decay_norm_and_bias: true,
            groups: Vec::new(),
        }
    }
}

names! {
    /// `[optimizer] adjust_lr` of Muon.
    AdjustLr {
        /// More for layers with more outputs than inputs: times √max(1, outputs / inputs), as in PyTorch.
        #[default]
        Original = "original",
        /// To updates as large as AdamW's, so that its `lr` and `weight_decay` fit: times
        /// 0.2 · √max(inputs, outputs).
        MatchRmsAdamW = "match-rms-adamw",
    }
}

/// `[optimizer] name = "muon"`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct MuonConfig {
    /// Learning rate. Default 0.001.
    pub lr: f64,
    /// Share of the last update that is kept, in [0, 1). Default 0.95.
    pub momentum: f64,
    /// Nesterov's form of momentum. Default true.
    pub nesterov: bool,
    /// Steps of the iteration that makes an update orthogonal, 1 to 100. Default 5.
    pub ns_steps: u64,
    /// The least that an update's norm counts for. Default 1e-7.
    pub eps: f64,
    /// How the rate follows the shape of a matrix: `original` or `match-rms-adamw`. Default
    /// `original`.
    pub adjust_lr: AdjustLr,
    /// Share of each parameter, times the learning rate, that a step takes away; of AdamW's
    /// parameters too. Default 0.1.
    pub weight_decay: f64,
    /// Patterns for whole paths of matrices that are AdamW's too; usual are the first and the last
    /// layer, such as `["head.*"]`. Each has to match a parameter. Default none.
    pub adamw_match: Vec<String>,
    /// Learning rate of AdamW, on the same schedule. Default: `lr`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub adamw_lr: Option<f64>,
    /// AdamW's decay of the averages of the gradient and its square, in [0, 1). Default
    /// `[0.9, 0.999]`.
    #[serde(deserialize_with = "exactly")]
    pub adamw_betas: [f64; 2],
    /// Added to AdamW's denominator. Default 1e-8.
    pub adamw_eps: f64,
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

impl Default for MuonConfig {
    fn default() -> Self {
        Self {
            lr: 1e-3,
            momentum: 0.95,
            nesterov: true,
            ns_steps: 5,
            eps: 1e-7,
            adjust_lr: AdjustLr::Original,
            weight_decay: 0.1,
            adamw_match: Vec::new(),
            adamw_lr: None,
            adamw_betas: [0.9, 0.999],
            adamw_eps: 1e-8,
            decay_norm_and_bias: true,
            groups: Vec::new(),
        }
    }
}

impl MuonConfig {
    /// Learning rate of AdamW.
    pub fn adamw_lr(&self) -> f64 {
        self.adamw_lr.unwrap_or(self.lr)
    }

    /// Whether AdamW steps this parameter.
    pub fn leaves_to_adamw(&self, parameter: &ParameterSpec) -> bool {
        let matches = |pattern: &String| path_matches(pattern, &parameter.path);
        parameter.shape.len() != 2 || self.adamw_match.iter().any(matches)
    }
}
