//! Evaluates models: losses, metrics from scores, and an evaluation over all ranks.

pub mod details;
pub mod evaluate;
pub mod evaluation;
pub(crate) mod loss;
pub(crate) mod reading;
pub(crate) mod scores;
