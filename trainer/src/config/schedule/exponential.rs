//! An exponential decay per epoch.

use super::{AnySchedule, Moment, check_gamma, check_min_lr};
use crate::config::error::Fault;
use crate::config::section::keys;

keys! {
    /// `exponential`: decay by `gamma` per epoch, applied at every step unless `every = "epoch"`.
    Exponential {
        /// Minimum learning rate. Default 0.
        min_lr: f64 = 0.0,
        /// The factor, in (0, 1]. Default 0.1.
        gamma: f64 = 0.1,
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
