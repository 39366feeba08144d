//! A rise to the peak rate and a decay.

use super::cosine::cosine;
use super::{AnySchedule, Moment};
use crate::config::error::Fault;
use crate::config::section::keys;
use crate::config::validate::ensure;

keys! {
    /// `one-cycle`: up to the highest learning rate and down again. The momentum does not change,
    /// as with PyTorch's `cycle_momentum=False`. It has its own warm-up.
    OneCycle {
        /// Share of the run in which the learning rate rises, in (0, 1). Default 0.3.
        peak: f64 = 0.3,
        /// Highest divided by first learning rate. Default 25.
        div_factor: f64 = 25.0,
        /// First divided by last learning rate. Default 10000.
        final_div_factor: f64 = 1e4,
    }
}

impl AnySchedule for OneCycle {
    fn check(&self, _lr: f64) -> Result<(), Fault> {
        let good = self.peak > 0.0 && self.peak < 1.0;
        ensure(good, "schedule.peak", self.peak, "between 0 and 1")?;
        for (key, factor) in [
            ("schedule.div_factor", self.div_factor),
            ("schedule.final_div_factor", self.final_div_factor),
        ] {
            let good = factor >= 1.0 && factor.is_finite();
            ensure(good, key, factor, "1 or larger")?;
        }
        Ok(())
    }

    fn warms_up(&self) -> bool {
        true
    }

    /// Half a cosine up and half a cosine down, as in PyTorch's `OneCycleLR`.
    ///
    /// Smith & Topin 2017, <https://arxiv.org/abs/1708.07120>.
    fn rate(&self, at: &Moment) -> f64 {
        let start = at.high / self.div_factor;
        let end = start / self.final_div_factor;
        let peak = self.peak * at.total as f64 - 1.0;
        let last = at.total as f64 - 1.0;
        let position = at.position as f64;
        let between =
            |from: f64, to: f64, share: f64| to + (from - to) * cosine(share.clamp(0.0, 1.0));
        if position <= peak {
            let share = if peak > 0.0 { position / peak } else { 1.0 };
            between(start, at.high, share)
        } else {
            let rest = (last - peak).max(f64::MIN_POSITIVE);
            between(at.high, end, (position - peak) / rest)
        }
    }
}
