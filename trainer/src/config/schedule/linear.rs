//! A straight line.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{AnySchedule, Moment, check_min_lr};
use crate::config::error::Fault;

/// `linear`: a straight line to `min_lr`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Linear {
    /// The rate at the end. Default 0.
    pub min_lr: f64,
}

impl AnySchedule for Linear {
    fn check(&self, lr: f64) -> Result<(), Fault> {
        check_min_lr(self.min_lr, lr)
    }

    fn rate(&self, at: &Moment) -> f64 {
        at.high + (self.min_lr - at.high) * at.share()
    }
}
