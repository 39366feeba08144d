//! A decay by half a cosine.

use std::f64::consts::PI;

use super::{AnySchedule, Moment, check_min_lr};
use crate::config::error::Fault;
use crate::config::section::keys;

keys! {
    /// `cosine`: cosine decay to `min_lr`.
    Cosine {
        /// Learning rate at the end. Default 0.
        min_lr: f64 = 0.0,
    }
}

impl AnySchedule for Cosine {
    fn check(&self, lr: f64) -> Result<(), Fault> {
        check_min_lr(self.min_lr, lr)
    }

    fn rate(&self, at: &Moment) -> f64 {
        self.min_lr + (at.high - self.min_lr) * cosine(at.share())
    }
}

/// Falls from 1 to 0 as `share` goes from 0 to 1.
pub(super) fn cosine(share: f64) -> f64 {
    (1.0 + (PI * share).cos()) / 2.0
}
