//! Tells whether a run folder holds checkpoints.

use std::path::Path;

use burn_dist::checkpoint::{leftovers, list};

use crate::config::run_name::CHECKPOINTS;
use crate::error::TrainError;

/// Whether a run folder holds any part of a checkpoint: good, damaged, abandoned or unfinished.
pub(crate) fn has_traces(run_dir: &Path) -> Result<bool, TrainError> {
    let [aside, unfinished] = leftovers(&run_dir.join(CHECKPOINTS))?;
    Ok(has_checkpoint(run_dir)? || !aside.is_empty() || !unfinished.is_empty())
}

/// Whether a run folder holds a checkpoint, good or damaged.
pub(crate) fn has_checkpoint(run_dir: &Path) -> Result<bool, TrainError> {
    let saved = list(&run_dir.join(CHECKPOINTS))?;
    Ok(saved.iter().any(|found| found.path.is_dir()))
}
