//! A linear decay.

use super::{AnySchedule, Moment, check_min_lr};
use crate::config::error::Fault;
use crate::config::section::keys;

keys! {
    /// `linear`: linear decay to `min_lr`.
    Linear {
        /// Learning rate at the end. Default 0.
        min_lr: f64 = 0.0,
    }
}

impl AnySchedule for Linear {
    fn check(&self, lr: f64) -> Result<(), Fault> {
        check_min_lr(self.min_lr, lr)
    }

    fn rate(&self, at: &Moment) -> f64 {
        at.high + (self.min_lr - at.high) * at.share()
    }
}
