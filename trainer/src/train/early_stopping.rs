//! Early stopping: ends a run that has reached its target or stopped improving.
//!
//! All ranks see the same evaluations, so they stop at the same step.

use serde::{Deserialize, Serialize};

use crate::config::EarlyStoppingConfig;
use crate::config::metric::{self, Better, Measure};
use crate::task::Evaluation;

/// State of early stopping.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Watch {
    /// Evaluations in a row that reached the target.
    reached: u64,
    /// Best value of the monitored metric.
    best: Option<f64>,
    /// Evaluations since the best one.
    stale: u64,
    /// The rule that the counts belong to: `[early_stopping]` without its patience.
    #[serde(default)]
    rule: Option<EarlyStoppingConfig>,
}

impl Watch {
    /// Counts an evaluation, and returns the reason if the run should end.
    ///
    /// `measures` are the task's.
    pub fn see(
        &mut self,
        config: &EarlyStoppingConfig,
        measures: &[Measure],
        evaluation: &Evaluation,
    ) -> Option<String> {
        let rule = rule(config);
        if self.rule.as_ref().is_some_and(|before| *before != rule) {
            *self = Self::default();
        }
        self.rule = Some(rule);
        if let Some(target) = config.target_accuracy {
            let accuracy = evaluation.metric("accuracy");
            self.reached = match accuracy.is_some_and(|accuracy| accuracy >= target) {
                true => self.reached + 1,
                false => 0,
            };
        } else if config.patience.is_some() {
            let (value, better) = watched(monitor(config), measures, evaluation);
            self.compare(config, value, better);
        }
        self.over(config)
    }

    /// The least number of further evaluations after which the run may end early. `None` if none of
    /// them may end it.
    pub fn earliest(&self, config: &EarlyStoppingConfig) -> Option<u64> {
        let counts = self.rule.as_ref() == Some(&rule(config));
        let (wanted, so_far) = match config.target_accuracy {
            Some(_) => (config.patience.unwrap_or(1), self.reached),
            // The first evaluation cannot be worse than one before.
            None => {
                let first = u64::from(!counts || self.best.is_none());
                (config.patience? + first, self.stale)
            }
        };
        let so_far = if counts { so_far } else { 0 };
        Some(wanted.saturating_sub(so_far).max(1))
    }

    fn compare(&mut self, config: &EarlyStoppingConfig, value: f64, better: Better) {
        let is_better = |best| better.is_better(value, best, config.min_delta);
        if self.best.is_none_or(is_better) {
            self.best = Some(value);
            self.stale = 0;
        } else {
            self.stale += 1;
        }
    }

    /// The reason to end after the evaluations so far, if any.
    ///
    /// `None` if the counts were made with another rule, such as another target.
    pub fn over(&self, config: &EarlyStoppingConfig) -> Option<String> {
        if self.rule.as_ref() != Some(&rule(config)) {
            return None;
        }
        if let Some(target) = config.target_accuracy {
            let wanted = config.patience.unwrap_or(1);
            return (self.reached >= wanted).then(|| {
                format!(
                    "the accuracy reached {:.2} % in {}",
                    100.0 * target,
                    evaluations(self.reached)
                )
            });
        }
        (self.stale >= config.patience?).then(|| {
            format!(
                "the {} did not improve for {}",
                monitor(config),
                evaluations(self.stale)
            )
        })
    }
}

/// The rule of `config`: its keys without the patience.
fn rule(config: &EarlyStoppingConfig) -> EarlyStoppingConfig {
    EarlyStoppingConfig {
        patience: None,
        ..config.clone()
    }
}

/// The name of the watched metric.
fn monitor(config: &EarlyStoppingConfig) -> &str {
    config.monitor.as_deref().unwrap_or("loss")
}

/// The watched metric of an evaluation and its direction. NaN if the task lacks it, which is never
/// better.
pub fn watched(name: &str, measures: &[Measure], evaluation: &Evaluation) -> (f64, Better) {
    let better = metric::find(measures, name).map_or(Better::Lower, |measure| measure.better);
    (evaluation.metric(name).unwrap_or(f64::NAN), better)
}

fn evaluations(number: u64) -> String {
    match number {
        1 => "1 evaluation".to_owned(),
        _ => format!("{number} evaluations in a row"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn evaluation(accuracy: f64) -> Evaluation {
        Evaluation::new(1.0 - accuracy, 1, [("accuracy", accuracy)])
    }

    fn measures() -> [Measure; 1] {
        [Measure::share("accuracy", "accuracy")]
    }

    /// Number of evaluations after which the run ends. Losses are one minus the accuracies.
    fn ends(config: &EarlyStoppingConfig, accuracies: &[f64]) -> Option<usize> {
        let mut watch = Watch::default();
        let end = accuracies.iter().position(|accuracy| {
            let evaluation = evaluation(*accuracy);
            watch.see(config, &measures(), &evaluation).is_some()
        });
        end.map(|index| index + 1)
    }

    #[test]
    fn the_target_has_to_be_reached_in_a_row() {
        let mut config = EarlyStoppingConfig {
            target_accuracy: Some(0.9),
            ..EarlyStoppingConfig::default()
        };
        assert_eq!(ends(&config, &[0.8, 0.9, 0.1]), Some(2));
        config.patience = Some(2);
        assert_eq!(ends(&config, &[0.95, 0.8, 0.9, 0.91]), Some(4));
        assert_eq!(ends(&config, &[0.95, 0.8, 0.9]), None);
    }

    #[test]
    fn patience_ends_when_nothing_gets_better() {
        let mut config = EarlyStoppingConfig {
            patience: Some(2),
            ..EarlyStoppingConfig::default()
        };
        for monitor in ["accuracy", "loss"] {
            config.monitor = Some(monitor.to_owned());
            assert_eq!(ends(&config, &[0.5, 0.6, 0.6, 0.7, 0.6, 0.7]), Some(6));
            assert_eq!(ends(&config, &[0.5, 0.6, 0.7, 0.8]), None);
        }
        config.min_delta = 0.2;
        assert_eq!(ends(&config, &[0.5, 0.6, 0.65]), Some(3));
    }

    #[test]
    fn the_earliest_end_follows_the_counts() {
        let config = EarlyStoppingConfig {
            patience: Some(3),
            ..EarlyStoppingConfig::default()
        };
        let mut watch = Watch::default();
        assert_eq!(watch.earliest(&config), Some(4));
        let measures = measures();
        for accuracy in [0.9, 0.8, 0.8] {
            watch.see(&config, &measures, &evaluation(accuracy));
        }
        assert_eq!(watch.earliest(&config), Some(1));
        assert_eq!(watch.earliest(&EarlyStoppingConfig::default()), None);
        let target = EarlyStoppingConfig {
            target_accuracy: Some(0.5),
            ..EarlyStoppingConfig::default()
        };
        assert_eq!(watch.earliest(&target), Some(1));
    }

    #[test]
    fn unasked_nothing_ends() {
        assert_eq!(ends(&EarlyStoppingConfig::default(), &[0.5; 100]), None);
    }

    #[test]
    fn what_is_over_stays_over_unless_more_is_wanted() {
        let (evaluation, measures) = (evaluation(0.9), measures());
        let target = EarlyStoppingConfig {
            target_accuracy: Some(0.8),
            patience: Some(2),
            ..EarlyStoppingConfig::default()
        };
        let patience = EarlyStoppingConfig {
            patience: Some(2),
            ..EarlyStoppingConfig::default()
        };
        assert_eq!(Watch::default().over(&target), None);
        for (config, needed) in [(target, 2), (patience, 3)] {
            let mut watch = Watch::default();
            for _ in 1..needed {
                assert_eq!(watch.see(&config, &measures, &evaluation), None);
                assert_eq!(watch.over(&config), None);
            }
            let reason = watch.see(&config, &measures, &evaluation);
            assert!(reason.is_some());
            // Round trip through a checkpoint's JSON.
            let text = serde_json::to_string(&watch).unwrap();
            let mut watch: Watch = serde_json::from_str(&text).unwrap();
            assert_eq!(watch.over(&config), reason);
            let longer = EarlyStoppingConfig {
                patience: Some(3),
                ..config.clone()
            };
            assert_eq!(watch.over(&longer), None);
            assert!(watch.clone().see(&longer, &measures, &evaluation).is_some());
            let higher = EarlyStoppingConfig {
                target_accuracy: Some(0.85),
                ..config.clone()
            };
            assert_eq!(watch.over(&higher), None);
            // The count starts again.
            assert_eq!(watch.see(&higher, &measures, &evaluation), None);
            assert!(watch.see(&higher, &measures, &evaluation).is_some());
            assert_eq!(watch.over(&EarlyStoppingConfig::default()), None);
        }
    }
}
