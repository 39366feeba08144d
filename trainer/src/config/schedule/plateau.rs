//! A decay when evaluations stop improving, as in PyTorch's `ReduceLROnPlateau`.

use super::{AnySchedule, Moment, Seen, check_min_lr};
use crate::config::error::Fault;
use crate::config::metric::Better;
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
        /// The metric that must improve: `loss` or one of the task's. Default `loss`.
        monitor: String = "loss".to_owned(),
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

    fn monitor(&self) -> Option<&str> {
        Some(&self.monitor)
    }

    fn see(&self, seen: &mut Seen, value: f64, better: Better) {
        // An accuracy cannot be compared with a loss.
        if seen.monitor.as_ref() != Some(&self.monitor) {
            (seen.best, seen.stale) = (None, 0);
            seen.monitor = Some(self.monitor.clone());
        }
        let is_better = |best| better.is_better(value, best, self.least(best));
        if seen.best.is_none_or(is_better) {
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
    /// Minimum improvement over `best`.
    fn least(&self, best: f64) -> f64 {
        match self.threshold_mode {
            ThresholdMode::Rel => best * self.threshold,
            ThresholdMode::Abs => self.threshold,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The rate after each of these evaluations.
    fn rates(plateau: &Plateau, values: &[f64]) -> Vec<f64> {
        let mut seen = Seen::default();
        let better = match plateau.monitor.as_str() {
            "loss" => Better::Lower,
            _ => Better::Higher,
        };
        let rate = |value: &f64| {
            plateau.see(&mut seen, *value, better);
            // Round trip through a checkpoint's JSON.
            let text = serde_json::to_string(&seen).unwrap();
            assert_eq!(serde_json::from_str::<Seen>(&text).unwrap(), seen);
            plateau.rate(&Moment {
                high: 1.0,
                position: 7,
                warmup: 0,
                total: 100,
                steps_per_epoch: 1,
                seen: seen.clone(),
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
            monitor: "accuracy".to_owned(),
            threshold: 0.1,
            patience: 0,
            ..Plateau::default()
        };
        let wanted = [1.0, 0.1, 0.1];
        assert_eq!(rates(&accuracy, &[0.5, 0.54, 0.56]), wanted);
        let absolute = Plateau {
            threshold_mode: ThresholdMode::Abs,
            ..accuracy.clone()
        };
        assert_eq!(rates(&absolute, &[0.5, 0.54, 0.61]), wanted);
    }

    #[test]
    fn another_number_has_another_best() {
        let mut seen = Seen::default();
        let by = |monitor: &str| Plateau {
            monitor: monitor.to_owned(),
            patience: 0,
            ..Plateau::default()
        };
        by("accuracy").see(&mut seen, 0.9, Better::Higher);
        by("loss").see(&mut seen, 2.0, Better::Lower);
        assert_eq!((seen.best, seen.lowered), (Some(2.0), 0));
        by("loss").see(&mut seen, 2.0, Better::Lower);
        assert_eq!(seen.lowered, 1);
    }
}
