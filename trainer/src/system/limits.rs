//! Runs that are cut short to try something: what they change in a configuration.

use crate::config::{CheckpointConfig, Config, EarlyStoppingConfig};

/// Steps, and batches of the evaluation, of a run that only tries everything once.
const TRIAL: u64 = 3;

/// Cuts the run short if it is one that only tries everything once.
pub(crate) fn apply(config: &mut Config) {
    if !config.train.fast_dev_run {
        return;
    }
    config.train.epochs = 1;
    config.train.max_steps = None;
    config.train.limit_batches = Some(TRIAL);
    config.checkpoint = CheckpointConfig::default();
    config.early_stopping = EarlyStoppingConfig::default();
}
