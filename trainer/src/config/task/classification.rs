//! Image classification.

use super::AnyTask;
use crate::config::metric::Measure;
use crate::config::section::keys;

keys! {
    /// `classification`: one class for each image.
    ClassificationConfig {}
}

/// Metrics beside the loss.
static MEASURES: [Measure; 2] = [
    Measure::share("accuracy", "accuracy"),
    Measure::share("top5", "top-5 accuracy"),
];

impl AnyTask for ClassificationConfig {
    fn measures(&self) -> Option<&'static [Measure]> {
        Some(&MEASURES)
    }

    fn monitor(&self) -> &'static str {
        "accuracy"
    }
}
