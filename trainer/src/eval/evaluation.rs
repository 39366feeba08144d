//! How good a model is, in numbers.

use serde::{Deserialize, Serialize};

/// How good a model is on the test images.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Evaluation {
    /// Mean loss over all samples.
    pub loss: f64,
    /// Share of samples whose class was predicted, from 0 to 1.
    pub accuracy: f64,
    /// Share of samples whose class was among the five that were thought most likely; only where
    /// there are more than five.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub top5: Option<f64>,
    /// Samples, over all ranks.
    pub samples: u64,
}
