//! Smaller every epoch.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{AnySchedule, Moment, check_gamma, check_min_lr};
use crate::config::error::Fault;

/// `exponential`: times `gamma` every epoch, a part of it at every step unless `every = "epoch"`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Exponential {
    /// The least rate. Default 0.
    pub min_lr: f64,
    /// The factor, in (0, 1]. Default 0.1.
    pub gamma: f64,
}

impl Default for Exponential {
    fn default() -> Self {
        Self {
            min_lr: 0.0,
            gamma: 0.1,
        }
    }
}

impl AnySchedule for Exponential {
    fn check(&self, lr: f64) -> Result<(), Fault> {
        check_min_lr(self.min_lr, lr)?;
        check_gamma(self.gamma)
    }

    fn rate(&self, at: &Moment) -> f64 {
        let epochs = (at.position - at.warmup) as f64 / at.steps_per_epoch as f64;
        (at.high * self.gamma.powf(epochs)).max(self.min_lr)
    }
}
