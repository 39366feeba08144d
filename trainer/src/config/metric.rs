//! Metrics of evaluations: names, directions and formats.

use std::borrow::Cow;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Which values of a metric are better.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Better {
    /// Higher ones, as of an accuracy.
    Higher,
    /// Lower ones, as of a loss.
    Lower,
}

impl Better {
    /// Whether `value` is better than `best` by more than `delta`.
    pub fn is_better(self, value: f64, best: f64, delta: f64) -> bool {
        match self {
            Self::Higher => value > best + delta,
            Self::Lower => value < best - delta,
        }
    }
}

/// How people read a metric.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Shown {
    /// A number with four decimals.
    Number,
    /// A share from 0 to 1, shown in percent.
    Percent,
}

impl Shown {
    /// The value in words.
    pub fn text(self, value: f64) -> String {
        match self {
            Self::Number => format!("{value:.4}"),
            Self::Percent => format!("{:.2} %", 100.0 * value),
        }
    }
}

/// A metric that an evaluation yields.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Measure {
    /// Its key in files and in the configuration, such as `mean_iou`.
    pub name: Cow<'static, str>,
    /// Its name for people, such as `mean IoU`.
    pub label: Cow<'static, str>,
    /// Which values are better.
    pub better: Better,
    /// How people read it.
    pub shown: Shown,
}

impl Measure {
    /// A share from 0 to 1. Higher values are better.
    pub const fn share(name: &'static str, label: &'static str) -> Self {
        Self {
            name: Cow::Borrowed(name),
            label: Cow::Borrowed(label),
            better: Better::Higher,
            shown: Shown::Percent,
        }
    }

    /// A number. Lower values are better.
    pub const fn cost(name: &'static str, label: &'static str) -> Self {
        Self {
            name: Cow::Borrowed(name),
            label: Cow::Borrowed(label),
            better: Better::Lower,
            shown: Shown::Number,
        }
    }
}

/// The mean loss, which every task has.
pub static LOSS: Measure = Measure::cost("loss", "loss");

/// The metric called `name`: the loss, or one of `measures`.
pub fn find<'a>(measures: &'a [Measure], name: &str) -> Option<&'a Measure> {
    let all = std::iter::once(&LOSS).chain(measures);
    all.into_iter().find(|measure| measure.name == name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn better_follows_the_direction() {
        assert!(Better::Higher.is_better(0.6, 0.5, 0.0));
        assert!(!Better::Higher.is_better(0.6, 0.5, 0.1));
        assert!(Better::Lower.is_better(0.4, 0.5, 0.0));
        assert!(!Better::Lower.is_better(0.5, 0.5, 0.0));
        assert!(!Better::Lower.is_better(f64::NAN, 0.5, 0.0));
    }

    #[test]
    fn the_loss_is_a_metric_of_every_task() {
        let measures = [Measure::share("accuracy", "accuracy")];
        assert_eq!(find(&measures, "loss").unwrap().better, Better::Lower);
        assert_eq!(find(&measures, "accuracy"), Some(&measures[0]));
        assert_eq!(find(&measures, "accurcy"), None);
        assert_eq!(Shown::Percent.text(0.9712), "97.12 %");
        assert_eq!(Shown::Number.text(2.0), "2.0000");
    }
}
