//! What becomes of a checkpoint that nobody can go on from.

use burn_dist::checkpoint;
use burn_dist::parallel::ParallelError;
use models::ImageClassifier;

use super::Training;
use crate::config::run_name::CHECKPOINTS;
use crate::error::TrainError;
use crate::run::lock::RunLock;
use crate::system::output::complain;

impl<M: ImageClassifier> Training<'_, M> {
    /// Takes the checkpoint out of the way with whose state the run diverged, if that is why it
    /// ended: a loss that comes before the next update is the same whatever the learning rate, so
    /// `--resume auto` would fail for ever.
    pub(super) fn abandon(&mut self, error: &TrainError) {
        let state = match error {
            TrainError::Diverged { state, .. } => *state,
            // Since then no step could be done with its parameters at any scale of the loss.
            TrainError::Parallel(ParallelError::LossScale(_)) => self.applied,
            _ => return,
        };
        // It may still be on its way to the disk.
        drop(self.checkpoints.take());
        let is_ours = |lock: &RunLock| lock.check_held().is_ok();
        let Some(run_dir) = &self.run_dir else {
            return;
        };
        if !self.lock.as_deref().is_some_and(is_ours) {
            return;
        }
        let folder = run_dir.join(CHECKPOINTS);
        let told = match checkpoint::set_aside(&folder, state.saturating_sub(1)) {
            Ok(aside) if aside.is_empty() => return,
            Ok(aside) => {
                let names = aside.iter().filter_map(|path| path.file_name());
                let names: Vec<_> = names.map(|name| name.to_string_lossy()).collect();
                format!(
                    "abandoned the state in which training diverged: {}",
                    names.join(", ")
                )
            }
            Err(error) => {
                format!("cannot abandon the state in which training diverged: {error}")
            }
        };
        complain(&format!("warning: {told}"));
    }
}
