//! A constant learning rate.

use super::{AnySchedule, Moment};
use crate::config::section::keys;

keys! {
    /// `constant`: the optimizer's `lr` at every step.
    Constant {}
}

impl AnySchedule for Constant {
    fn rate(&self, at: &Moment) -> f64 {
        at.high
    }
}
