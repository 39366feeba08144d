//! Whether a run folder holds checkpoints.

use std::path::Path;

use burn_dist::checkpoint::{leftovers, list};

use crate::config::run_name::CHECKPOINTS;
use crate::error::TrainError;

/// Whether anything of a checkpoint lies in a run folder: good or not, set aside, or unfinished.
pub(crate) fn has_traces(run_dir: &Path) -> Result<bool, TrainError> {
    let [aside, unfinished] = leftovers(&run_dir.join(CHECKPOINTS))?;
    Ok(has_checkpoint(run_dir)? || !aside.is_empty() || !unfinished.is_empty())
}

/// Whether a run has saved anything, good or not.
pub(crate) fn has_checkpoint(run_dir: &Path) -> Result<bool, TrainError> {
    let saved = list(&run_dir.join(CHECKPOINTS))?;
    Ok(saved.iter().any(|found| found.path.is_dir()))
}
