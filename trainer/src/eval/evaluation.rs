//! Metrics of an evaluation.

use serde::{Deserialize, Serialize};

/// Metrics of a model on the test images.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Evaluation {
    /// Mean loss over all samples.
    pub loss: f64,
    /// Fraction of samples with the right prediction, from 0 to 1.
    pub accuracy: f64,
    /// Fraction of samples whose class is among the five likeliest. `None` for five classes or
    /// fewer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub top5: Option<f64>,
    /// Number of samples over all ranks.
    pub samples: u64,
}
