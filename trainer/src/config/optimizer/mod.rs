//! `[optimizer]`: the optimizers.
//!
//! Each optimizer is one file (keys, defaults, checks, size of its state, and how to build it) and
//! one line in the list below.

mod adadelta;
mod adafactor;
mod adam;
mod adamw;
mod lamb;
mod lion;
mod muon;
mod rmsprop;
mod sgd;

use burn::optim::decay::WeightDecayConfig;
use burn_dist::parallel::{
    ParameterGroup, ParameterOptimizer, ParameterSpec, ParameterState, path_matches,
};

use super::error::Fault;
use super::groups::{self, GroupConfig};
use super::named::named_section;
use super::section::keys;
use super::validate::{ensure, fraction, not_negative, positive};

pub use muon::AdjustLr;

named_section! {
    /// `[optimizer]`: how gradients change parameters. The keys depend on `name`. Formulas and
    /// defaults are PyTorch's where it has the optimizer. Exceptions: the default `lr` of SGD,
    /// `eps` of Adafactor, and Muon's iteration, which is in f32. LAMB follows its paper: it clips
    /// nothing by itself (`train.clip_norm`), and adapts the size of all parameters' updates.
    "optimizer" OptimizerConfig(OptimizerKeys) OptimizerKind: AnyOptimizer, None;
    "sgd" Sgd(sgd::SgdConfig),
    "adam" Adam(adam::AdamConfig),
    "adamw" AdamW(adamw::AdamWConfig),
    "adadelta" Adadelta(adadelta::AdadeltaConfig),
    "lion" Lion(lion::LionConfig),
    "lamb" Lamb(lamb::LambConfig),
    "adafactor" Adafactor(adafactor::AdafactorConfig),
    "muon" Muon(muon::MuonConfig),
    "rmsprop" RmsProp(rmsprop::RmsPropConfig),
}

keys! {
    /// The keys of `[optimizer]` that go with every `name`.
    OptimizerKeys {
        /// Whether weight decay applies to biases, scales and offsets of normalizations, and the
        /// learned tokens and positions of transformers, as in PyTorch by default. Default true.
        decay_norm_and_bias: bool = true,
        /// Layer-wise decay of the learning rate, for fine-tuning, in (0, 1]: the last layer has
        /// the whole rate, each layer before it this multiple of the next one's, down to the stem.
        /// Layers are the blocks of the model. Default 1.
        layer_decay: f64 = 1.0,
        /// Other settings for some parameters: tables `[[optimizer.groups]]` with the key `match`,
        /// a pattern for whole parameter paths in which `*` matches any characters and `?` one.
        /// Further keys are `lr_factor` (a multiple of the learning rate), `weight_decay` and, for
        /// `sgd`, `momentum`. The first matching group counts. Default none.
        #[serde(skip_serializing_if = "Vec::is_empty")]
        groups: Vec<GroupConfig> = Vec::new(),
    }
}

/// The interface of an optimizer in `[optimizer]`.
pub trait AnyOptimizer {
    /// Learning rate without a schedule.
    fn lr(&self) -> f64;

    /// Weight decay.
    fn weight_decay(&mut self) -> &mut f64;

    /// The momentum that `[[optimizer.groups]]` may set, if any.
    fn momentum(&mut self) -> Option<&mut f64> {
        None
    }

    /// Checks the optimizer's own keys, without `lr` and `weight_decay`.
    ///
    /// # Errors
    /// The first invalid key.
    fn check(&self) -> Result<(), Fault>;

    /// Number of values kept for a parameter. Default: two moments of each element.
    fn keeps(&self, parameter: &ParameterSpec) -> u64 {
        2 * parameter.num_elements() as u64
    }

    /// Whether it needs the whole parameter at once, so that sharding must not cut it.
    fn whole(&self, _parameter: &ParameterSpec) -> bool {
        false
    }

    /// Builds the optimizer. Sets all hyperparameters, because some defaults of Burn differ from
    /// the values that published recipes assume.
    fn build(&self) -> ParameterOptimizer;

    /// Parameters left to other optimizers. These groups come after all others.
    fn others(&self) -> Vec<ParameterGroup> {
        Vec::new()
    }

    /// The key that names this group of [`others`](Self::others).
    fn key_of(&self, _group: &str) -> Option<&'static str> {
        None
    }
}

/// Keys that every optimizer has, each with its own default.
macro_rules! rates {
    () => {
        fn lr(&self) -> f64 {
            self.lr
        }

        fn weight_decay(&mut self) -> &mut f64 {
            &mut self.weight_decay
        }
    };
}
use rates;

/// The common parts of Adam and its relatives, given Burn's configuration and its weight decay.
macro_rules! like_adam {
    ($burn:ident, $decay:ident => $in_burn:expr) => {
        $crate::config::optimizer::rates!();

        fn check(&self) -> Result<(), $crate::config::error::Fault> {
            $crate::config::optimizer::moments(self.betas, self.eps)
        }

        fn build(&self) -> burn_dist::parallel::ParameterOptimizer {
            let $decay = self.weight_decay;
            burn::optim::$burn::new()
                .with_beta_1(self.betas[0] as f32)
                .with_beta_2(self.betas[1] as f32)
                .with_epsilon(self.eps as f32)
                .with_weight_decay($in_burn)
                .into()
        }
    };
}
use like_adam;

impl OptimizerConfig {
    /// Learning rate without a schedule.
    pub fn lr(&self) -> f64 {
        self.kind.lr()
    }

    /// State kept for a parameter, and whether sharding must not cut it.
    pub fn state_of(&self, parameter: &ParameterSpec) -> ParameterState {
        let mut groups = self.groups.iter();
        let group = groups.find(|group| path_matches(&group.pattern, &parameter.path));
        let own = group.map_or_else(|| self.clone(), |group| self.of_group(group));
        ParameterState {
            elements: parameter.num_elements() as u64,
            kept: own.kind.keeps(parameter),
            whole: own.kind.whole(parameter),
        }
    }

    /// A copy with another weight decay.
    pub fn with_weight_decay(mut self, decay: f64) -> Self {
        *self.kind.weight_decay() = decay;
        self
    }

    /// Settings for the parameters in `group`.
    pub fn of_group(&self, group: &GroupConfig) -> Self {
        let mut own = self.clone();
        if let Some(decay) = group.weight_decay {
            own = own.with_weight_decay(decay);
        }
        if let (Some(own), Some(momentum)) = (own.kind.momentum(), group.momentum) {
            *own = momentum;
        }
        own
    }

    pub(super) fn check(&self) -> [Result<(), Fault>; 5] {
        let decay = *self.clone().kind.weight_decay();
        let layers = self.layer_decay;
        let share = layers > 0.0 && layers <= 1.0;
        [
            positive("optimizer.lr", self.lr()),
            not_negative("optimizer.weight_decay", decay),
            ensure(share, "optimizer.layer_decay", layers, "in (0, 1]"),
            groups::check(self),
            self.kind.check(),
        ]
    }
}

fn decays(betas: [f64; 2]) -> Result<(), Fault> {
    for beta in betas {
        fraction("optimizer.betas", beta)?;
    }
    Ok(())
}

fn moments(betas: [f64; 2], eps: f64) -> Result<(), Fault> {
    decays(betas)?;
    positive("optimizer.eps", eps)
}

/// Weight decay added to the gradient.
fn weight_decay(penalty: f64) -> Option<WeightDecayConfig> {
    (penalty > 0.0).then(|| WeightDecayConfig::new(penalty as f32))
}
