//! A constant rate and a decay at the end of the run.

use super::cosine::cosine;
use super::{AnySchedule, Moment, check_min_lr};
use crate::config::error::Fault;
use crate::config::section::{keys, names};
use crate::config::validate::ensure;

names! {
    /// `[schedule] shape` of the decay of `wsd`.
    DecayShape {
        /// A straight line.
        #[default]
        Linear = "linear",
        /// Half a cosine.
        Cosine = "cosine",
        /// 1 − √share: fast at first.
        Sqrt = "sqrt",
    }
}

keys! {
    /// `wsd`: warm-up, a constant rate, and a decay to `min_lr` in the last part of the run. A run
    /// can go on from a checkpoint before the decay. Set `warmup_epochs` or `warmup_steps` for the
    /// warm-up.
    Wsd {
        /// Share of the run in which the learning rate falls, in (0, 1]. Default 0.2.
        decay: f64 = 0.2,
        /// Shape of the decay: `linear`, `cosine` or `sqrt`. Default `linear`.
        shape: DecayShape = DecayShape::Linear,
        /// Learning rate at the end. Default 0.
        min_lr: f64 = 0.0,
    }
}

impl AnySchedule for Wsd {
    fn check(&self, lr: f64) -> Result<(), Fault> {
        let good = self.decay > 0.0 && self.decay <= 1.0;
        ensure(good, "schedule.decay", self.decay, "in (0, 1]")?;
        check_min_lr(self.min_lr, lr)
    }

    /// Hu et al. 2024, <https://arxiv.org/abs/2404.06395>; `sqrt`: Hägele et al. 2024,
    /// <https://arxiv.org/abs/2405.18392>.
    fn rate(&self, at: &Moment) -> f64 {
        let total = at.total as f64;
        let start = (total * (1.0 - self.decay)).round().max(at.warmup as f64);
        let done = (at.position as f64 - start).max(0.0);
        let share = (done / (total - start).max(1.0)).min(1.0);
        let left = match self.shape {
            DecayShape::Linear => 1.0 - share,
            DecayShape::Cosine => cosine(share),
            DecayShape::Sqrt => 1.0 - share.sqrt(),
        };
        self.min_lr + (at.high - self.min_lr) * left
    }
}
