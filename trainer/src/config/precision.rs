//! `[loss_scale]`: loss scaling in half precision; `[ema]` and `[swa]`: averages of the parameters.

use burn_dist::parallel::{EmaOptions, LossScaleOptions, SwaOptions};

use super::error::Fault;
use super::section::keys;
use super::validate::{fraction, in_range};

keys! {
    /// `[loss_scale]`: loss scaling, used only with `train.precision = "f16"`. A step whose
    /// gradients overflow is skipped on all ranks; schedules count it like any other.
    LossScaleConfig {
        /// Initial loss scale. Default 65536.
        initial: f64 = LossScaleOptions::default().initial,
        /// Factor by which the loss scale grows after `growth_interval` good steps. Default 2.
        growth: f64 = LossScaleOptions::default().growth,
        /// Good steps in a row after which the loss scale grows. Default 2000.
        growth_interval: u64 = LossScaleOptions::default().growth_interval,
        /// Factor by which the loss scale shrinks after an overflow, in (0, 1). Default 0.5.
        backoff: f64 = LossScaleOptions::default().backoff,
        /// Number of overflows since the last growth at which the loss scale shrinks. Default 2.
        hysteresis: u64 = LossScaleOptions::default().hysteresis,
        /// Minimum loss scale. Default 1.
        floor: f64 = LossScaleOptions::default().floor,
        /// Skipped steps in a row, at the minimum loss scale, after which the run fails. Default
        /// 10.
        give_up_after: u64 = LossScaleOptions::default().give_up_after,
    }
}

impl LossScaleConfig {
    /// Converts to the library's options.
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
            Fault::in_key(&key, format!("`{key}` = {value} must be {expected}"))
        })
    }
}

keys! {
    /// `[ema]`: an exponential moving average (EMA) of the parameters, which often evaluates
    /// better. Evaluations, the best checkpoint, early stopping and exports use it; training
    /// continues with the parameters.
    EmaConfig {
        /// Decay of the average, in [0, 1), for example 0.9999. Default: no average.
        decay: Option<f64> = None,
        /// Whether the decay starts lower, to forget the random initial parameters: `min(decay, (1
        /// + t) / (10 + t))` after `t` steps. Default true.
        warmup: bool = true,
    }
}

impl EmaConfig {
    /// Converts to the library's options.
    pub fn options(&self) -> Option<EmaOptions> {
        let warmup = self.warmup;
        self.decay.map(|decay| EmaOptions { decay, warmup })
    }

    pub(super) fn check(&self) -> Result<(), Fault> {
        match self.decay {
            Some(decay) => fraction("ema.decay", decay),
            None if self.warmup == Self::default().warmup => Ok(()),
            None => {
                let fault = Fault::in_key(
                    "ema.warmup",
                    "`ema.warmup` has no effect without `ema.decay`",
                );
                Err(fault.help("remove it, or set ema.decay, for example to 0.9999"))
            }
        }
    }
}

keys! {
    /// `[swa]`: stochastic weight averaging, the mean of the parameters in the last part of the
    /// run. Evaluations and exports use it, as they do the average of `[ema]`; a run has one of
    /// both. Use it with a learning rate that stays high. Running statistics of batch
    /// normalizations are not averaged: prefer models with layer normalization.
    SwaConfig {
        /// Share of the run after which averaging starts, in [0, 1), for example 0.75. The last
        /// step of the run always counts. Default: no average.
        start: Option<f64> = None,
        /// Steps between two that count, back from the last one. Default: one epoch.
        #[schemars(extend("unit" = "steps"))]
        every_steps: Option<u64> = None,
    }
}

impl SwaConfig {
    /// Converts to the library's options, for a run of `total` steps.
    pub fn options(&self, steps_per_epoch: u64, total: u64) -> Option<SwaOptions> {
        let every = self.every_steps.unwrap_or(steps_per_epoch).max(1);
        self.start.map(|start| {
            let after = (start * total as f64).floor() as u64;
            let more = total.saturating_sub(after.max(1)) / every;
            SwaOptions {
                start: total.saturating_sub(more * every),
                every,
            }
        })
    }

    pub(super) fn check(&self, ema: &EmaConfig) -> Result<(), Fault> {
        if let Some(steps) = self.every_steps {
            in_range("swa.every_steps", steps, 1, i64::MAX as u64)?;
        }
        match (self.start, self.every_steps) {
            (Some(_), _) if ema.decay.is_some() => {
                let text = "`swa.start` and `ema.decay` both set an average of the parameters";
                Err(Fault::in_key("swa.start", text).help("keep one of them"))
            }
            (Some(start), _) => fraction("swa.start", start),
            (None, Some(_)) => {
                let text = "`swa.every_steps` has no effect without `swa.start`";
                let fault = Fault::in_key("swa.every_steps", text);
                Err(fault.help("remove it, or set swa.start, for example to 0.75"))
            }
            (None, None) => Ok(()),
        }
    }
}
