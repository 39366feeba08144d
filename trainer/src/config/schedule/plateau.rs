//! A decay when evaluations stop improving, as in PyTorch's `ReduceLROnPlateau`.

use super::{AnySchedule, Moment, Seen, check_min_lr};
use crate::config::MonitorName;
use crate::config::error::Fault;
use crate::config::section::{keys, names};
use crate::config::validate::{ensure, not_negative};

names! {
    /// `[schedule] threshold_mode`: what `threshold` is of.
    ThresholdMode {
        /// A share of the best value.
        #[default]
        Rel = "rel",
        /// A difference from the best value.
        Abs = "abs",
    }
}

keys! {
    /// `plateau`: decay by `factor` after more than `patience` evaluations in a row without
    /// improvement, as PyTorch's `ReduceLROnPlateau`.
    Plateau {
        /// The metric that must improve: `accuracy` or `loss`. Default `loss`.
        monitor: MonitorName = MonitorName::Loss,
        /// The factor, in (0, 1). Default 0.1.
        factor: f64 = 0.1,
        /// Evaluations in a row without improvement before the learning rate drops. Default 10.
        #[schemars(extend("unit" = "evaluations"))]
        patience: u64 = 10,
        /// Minimum improvement over the best evaluation. Default 0.0001.
        threshold: f64 = 1e-4,
        /// Whether `threshold` is a share of the best value (`rel`) or a difference from it
        /// (`abs`). Default `rel`.
        threshold_mode: ThresholdMode = ThresholdMode::Rel,
        /// Evaluations ignored after the learning rate dropped. Default 0.
        #[schemars(extend("unit" = "evaluations"))]
        cooldown: u64 = 0,
        /// Minimum learning rate. Default 0.
        min_lr: f64 = 0.0,
    }
}

impl AnySchedule for Plateau {
    fn check(&self, lr: f64) -> Result<(), Fault> {
        let good = self.factor > 0.0 && self.factor < 1.0;
        ensure(good, "schedule.factor", self.factor, "between 0 and 1")?;
        not_negative("schedule.threshold", self.threshold)?;
        check_min_lr(self.min_lr, lr)
    }

    fn follows_evaluations(&self) -> bool {
        true
    }

    fn see(&self, seen: &mut Seen, value: &dyn Fn(MonitorName) -> f64) {
        // An accuracy cannot be compared with a loss.
        if seen.monitor.replace(self.monitor) != Some(self.monitor) {
            (seen.best, seen.stale) = (None, 0);
        }
        let value = value(self.monitor);
        if seen.best.is_none_or(|best| self.is_better(value, best)) {
            (seen.best, seen.stale) = (Some(value), 0);
        } else {
            seen.stale += 1;
        }
        if seen.cooldown > 0 {
            seen.cooldown -= 1;
            seen.stale = 0;
        }
        if seen.stale > self.patience {
            seen.lowered += 1;
            (seen.cooldown, seen.stale) = (self.cooldown, 0);
        }
    }

    fn rate(&self, at: &Moment) -> f64 {
        let mut rate = at.high;
        for _ in 0..at.seen.lowered {
            let lower = (rate * self.factor).max(self.min_lr);
            if lower == rate {
                break;
            }
            rate = lower;
        }
        rate
    }
}

impl Plateau {
    fn is_better(&self, value: f64, best: f64) -> bool {
        let by = match self.threshold_mode {
            ThresholdMode::Rel => best * self.threshold,
            ThresholdMode::Abs => self.threshold,
        };
        match self.monitor {
            MonitorName::Loss => value < best - by,
            MonitorName::Accuracy => value > best + by,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The rate after each of these evaluations.
    fn rates(plateau: &Plateau, values: &[f64]) -> Vec<f64> {
        let mut seen = Seen::default();
        let rate = |value: &f64| {
            plateau.see(&mut seen, &|_| *value);
            // Round trip through a checkpoint's JSON.
            let text = serde_json::to_string(&seen).unwrap();
            assert_eq!(serde_json::from_str::<Seen>(&text).unwrap(), seen);
            plateau.rate(&Moment {
                high: 1.0,
                position: 7,
                warmup: 0,
                total: 100,
                steps_per_epoch: 1,
                seen,
            })
        };
        values.iter().map(rate).collect()
    }

    /// Expected rates from `torch.optim.lr_scheduler.ReduceLROnPlateau` with these settings.
    #[test]
    fn falls_as_pytorchs_does() {
        let plateau = Plateau {
            factor: 0.5,
            patience: 1,
            cooldown: 1,
            min_lr: 0.2,
            ..Plateau::default()
        };
        let losses = [
            1.0, 0.99995, 1.0, 1.0, 1.0, 1.0, 0.5, 0.5, 0.5, 0.5, 0.5, 0.5,
        ];
        let wanted = [
            1.0, 1.0, 0.5, 0.5, 0.5, 0.25, 0.25, 0.25, 0.2, 0.2, 0.2, 0.2,
        ];
        assert_eq!(rates(&plateau, &losses), wanted);
        let accuracy = Plateau {
            monitor: MonitorName::Accuracy,
            threshold: 0.1,
            patience: 0,
            ..Plateau::default()
        };
        let wanted = [1.0, 0.1, 0.1];
        assert_eq!(rates(&accuracy, &[0.5, 0.54, 0.56]), wanted);
        let absolute = Plateau {
            threshold_mode: ThresholdMode::Abs,
            ..accuracy
        };
        assert_eq!(rates(&absolute, &[0.5, 0.54, 0.61]), wanted);
    }

    #[test]
    fn another_number_has_another_best() {
        let mut seen = Seen::default();
        let by = |monitor| Plateau {
            monitor,
            patience: 0,
            ..Plateau::default()
        };
        by(MonitorName::Accuracy).see(&mut seen, &|_| 0.9);
        by(MonitorName::Loss).see(&mut seen, &|_| 2.0);
        assert_eq!((seen.best, seen.lowered), (Some(2.0), 0));
        by(MonitorName::Loss).see(&mut seen, &|_| 2.0);
        assert_eq!(seen.lowered, 1);
    }
}
