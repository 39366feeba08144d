//! `[loss_scale]`: how half precision holds small gradients; `[ema]`: the average of the
//! parameters.

use burn_dist::parallel::{EmaOptions, LossScaleOptions};

use super::error::Fault;
use super::section::keys;
use super::validate::fraction;

keys! {
    /// `[loss_scale]`: the factor of the loss that keeps gradients within half precision; of effect
    /// with `train.precision = "f16"` alone. A step whose gradients overflow is skipped on all
    /// ranks; schedules count it like any other.
    LossScaleConfig {
        /// The first factor. Default 65536.
        initial: f64 = LossScaleOptions::default().initial,
        /// The factor is multiplied by this after `growth_interval` good steps. Default 2.
        growth: f64 = LossScaleOptions::default().growth,
        /// Good steps in a row after which the factor grows. Default 2000.
        growth_interval: u64 = LossScaleOptions::default().growth_interval,
        /// The factor is multiplied by this when steps overflow, in (0, 1). Default 0.5.
        backoff: f64 = LossScaleOptions::default().backoff,
        /// The overflow, counted since the factor last grew, from which on it shrinks. Default 2.
        hysteresis: u64 = LossScaleOptions::default().hysteresis,
        /// Smallest factor. Default 1.
        floor: f64 = LossScaleOptions::default().floor,
        /// Skipped steps in a row, with the smallest factor, after which the run fails. Default 10.
        give_up_after: u64 = LossScaleOptions::default().give_up_after,
    }
}

impl LossScaleConfig {
    /// The same for the library.
    pub fn options(&self) -> LossScaleOptions {
        LossScaleOptions {
            initial: self.initial,
            growth: self.growth,
            growth_interval: self.growth_interval,
            backoff: self.backoff,
            hysteresis: self.hysteresis,
            floor: self.floor,
            give_up_after: self.give_up_after,
        }
    }

    pub(super) fn check(&self) -> Result<(), Fault> {
        let checked = self.options().check();
        checked.map_err(|(option, value, expected)| {
            let key = format!("loss_scale.{option}");
            Fault::in_key(&key, format!("`{key}` = {value} is not {expected}"))
        })
    }
}

keys! {
    /// `[ema]`: an exponential moving average of the parameters over the steps, which often
    /// evaluates better than the parameters themselves. Where there is one, evaluations, and with
    /// them the best checkpoint and early stopping, and exports go by it; training goes on with the
    /// parameters.
    EmaConfig {
        /// Share of the average that a step keeps, in [0, 1), for example 0.9999. Default: no
        /// average.
        #[serde(skip_serializing_if = "Option::is_none")]
        decay: Option<f64> = None,
        /// Whether the first steps keep less, so that the random parameters of the beginning are
        /// soon forgotten: after `t` steps `min(decay, (1 + t) / (10 + t))`. Default true.
        warmup: bool = true,
    }
}

impl EmaConfig {
    /// The same for the library.
    pub fn options(&self) -> Option<EmaOptions> {
        let warmup = self.warmup;
        self.decay.map(|decay| EmaOptions { decay, warmup })
    }

    pub(super) fn check(&self) -> Result<(), Fault> {
        match self.decay {
            Some(decay) => fraction("ema.decay", decay),
            None if self.warmup == Self::default().warmup => Ok(()),
            None => {
                let fault =
                    Fault::in_key("ema.warmup", "`ema.warmup` has no use without `ema.decay`");
                Err(fault.help("remove it, or set ema.decay, for example to 0.9999"))
            }
        }
    }
}
