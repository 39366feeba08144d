//! Always the same rate.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{AnySchedule, Moment};

/// `constant`: the optimizer's `lr` at every step.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Constant {}

impl AnySchedule for Constant {
    fn rate(&self, at: &Moment) -> f64 {
        at.high
    }
}
