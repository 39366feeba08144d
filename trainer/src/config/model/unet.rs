//! U-Nets.

use super::AnyModel;
use crate::config::error::Fault;
use crate::config::section::keys;
use crate::config::validate::{fraction, in_range};

keys! {
    /// `unet`: a U-Net for the task `segmentation`.
    UNetConfig {
        /// Channels at full size; each halving doubles them. Default 16.
        filters: usize = 16,
        /// Number of halvings. The sides of the images must be multiples of 2^`levels`. Default 2.
        levels: usize = 2,
        /// Probability of zeroing a value at the smallest size, in [0, 1). Default 0.
        dropout: f64 = 0.0,
    }
}

impl AnyModel for UNetConfig {
    fn task(&self) -> &'static str {
        "segmentation"
    }

    fn check(&self) -> Result<(), Fault> {
        in_range("model.filters", self.filters as u64, 1, 65_536)?;
        in_range("model.levels", self.levels as u64, 1, 10)?;
        fraction("model.dropout", self.dropout)
    }
}
