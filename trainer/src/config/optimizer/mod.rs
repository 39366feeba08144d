//! `[optimizer]`: each optimizer is one file, with its keys, their defaults and checks, what it
//! keeps of a parameter, and how it is built, and one line in the list below.

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
use super::validate::{fraction, not_negative, positive};

pub use muon::AdjustLr;

named_section! {
    /// `[optimizer]`: how gradients change parameters. The keys depend on `name`. Formulas and
    /// defaults are PyTorch's where it has the optimizer, but for the default `lr` of SGD, `eps` of
    /// Adafactor, and Muon's iteration, which is in f32. LAMB is that of its paper: it clips
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
        /// Other settings for some parameters: tables `[[optimizer.groups]]` with the key `match`,
        /// a pattern for whole parameter paths in which `*` matches any characters and `?` one.
        /// Further keys are `lr_factor` (a multiple of the learning rate), `weight_decay` and, for
        /// `sgd`, `momentum`. The first matching group counts. Default none.
        #[serde(skip_serializing_if = "Vec::is_empty")]
        groups: Vec<GroupConfig> = Vec::new(),
    }
}

/// What every optimizer says of itself.
pub trait AnyOptimizer {
    /// Learning rate before any schedule.
    fn lr(&self) -> f64;

    /// Weight decay.
    fn weight_decay(&mut self) -> &mut f64;

    /// The momentum that `[[optimizer.groups]]` may set, if it has one.
    fn momentum(&mut self) -> Option<&mut f64> {
        None
    }

    /// Whether its own keys make sense; `lr` and `weight_decay` are looked at already.
    ///
    /// # Errors
    /// The first that does not.
    fn check(&self) -> Result<(), Fault>;

    /// How many values it keeps of a parameter from step to step.
    fn keeps(&self, parameter: &ParameterSpec) -> u64;

    /// Whether it has to see all of a parameter at once, so that sharding does not cut it.
    fn whole(&self, _parameter: &ParameterSpec) -> bool {
        false
    }

    /// The optimizer itself. All numbers are set: some of Burn's defaults are not those that
    /// published recipes assume.
    fn build(&self) -> ParameterOptimizer;

    /// What it leaves to other optimizers; these groups come after all others.
    fn others(&self) -> Vec<ParameterGroup> {
        Vec::new()
    }

    /// The key that names this group of its [`others`](Self::others).
    fn key_of(&self, _group: &str) -> Option<&'static str> {
        None
    }
}

/// The keys that every optimizer has, with defaults of its own.
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

impl OptimizerConfig {
    /// Learning rate before any schedule.
    pub fn lr(&self) -> f64 {
        self.kind.lr()
    }

    /// What it keeps for a parameter, and whether it has to see all of it.
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

    /// The same with another weight decay.
    pub fn with_weight_decay(mut self, decay: f64) -> Self {
        *self.kind.weight_decay() = decay;
        self
    }

    /// The settings of the parameters in `group`.
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

    pub(super) fn check(&self) -> Result<(), Fault> {
        positive("optimizer.lr", self.lr())?;
        not_negative("optimizer.weight_decay", *self.clone().kind.weight_decay())?;
        groups::check(self)?;
        self.kind.check()
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

/// Weight decay that is added to the gradient.
fn weight_decay(penalty: f64) -> Option<WeightDecayConfig> {
    (penalty > 0.0).then(|| WeightDecayConfig::new(penalty as f32))
}
