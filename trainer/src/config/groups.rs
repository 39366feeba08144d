//! `[[optimizer.groups]]`: optimizer settings for some of the parameters.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::error::Fault;
use super::optimizer::OptimizerConfig;
use super::validate::{fraction, not_negative};

/// `[[optimizer.groups]]`: what is different for the parameters whose path matches. The first group
/// that matches a parameter counts.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct GroupConfig {
    /// Pattern for the whole path of a parameter: `*` stands for any characters, `?` for one.
    /// `"head.*"` are the parameters of the last layer, `"*.bias"` all biases.
    #[serde(rename = "match")]
    pub pattern: String,
    /// Multiple of the learning rate. Default 1.
    #[serde(default = "one")]
    pub lr_factor: f64,
    /// The group's weight decay, on norms and biases too. Default that of `[optimizer]`.
    pub weight_decay: Option<f64>,
    /// The group's momentum, for `sgd`. Default that of `[optimizer]`.
    pub momentum: Option<f64>,
}

fn one() -> f64 {
    1.0
}

const KEY: &str = "optimizer.groups";

pub(super) fn check(optimizer: &OptimizerConfig) -> Result<(), Fault> {
    for group in &optimizer.groups {
        if group.pattern.is_empty() {
            return Err(Fault::in_key(KEY, "the `match` of a group is empty")
                .help("for example match = \"head.*\" or match = \"*.bias\""));
        }
        not_negative(KEY, group.lr_factor)?;
        if let Some(decay) = group.weight_decay {
            not_negative(KEY, decay)?;
        }
        if let Some(momentum) = group.momentum {
            fraction(KEY, momentum)?;
            if optimizer.clone().kind.momentum().is_none() {
                let (group, name) = (&group.pattern, optimizer.kind.name());
                let text =
                    format!("the group `{group}` sets a momentum, which `{name}` does not have");
                let help = "remove it, or use an optimizer with momentum, such as optimizer.name = \"sgd\"";
                return Err(Fault::in_key(KEY, text).help(help));
            }
        }
    }
    Ok(())
}
