//! Shortens trial runs by changing their configuration.

use crate::config::{CheckpointConfig, Config, EarlyStoppingConfig};

/// Steps and evaluation batches of a trial run.
const TRIAL: u64 = 3;

/// Shortens the run if it is a trial (`train.fast_dev_run`).
pub(crate) fn apply(config: &mut Config) {
    if !config.train.fast_dev_run {
        return;
    }
    config.train.epochs = 1;
    config.train.max_steps = None;
    config.train.evaluate_every_steps = None;
    config.train.limit_batches = Some(TRIAL);
    config.checkpoint = CheckpointConfig::default();
    config.early_stopping = EarlyStoppingConfig::default();
}
