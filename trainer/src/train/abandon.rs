//! Marks a checkpoint as abandoned if no run can go on from it.

use burn_dist::checkpoint;
use burn_dist::parallel::ParallelError;

use super::Training;
use crate::config::run_name::CHECKPOINTS;
use crate::error::TrainError;
use crate::run::lock::RunLock;
use crate::system::output::complain;
use crate::task::Task;

impl<T: Task> Training<'_, T> {
    /// Abandons the checkpoint whose state made the run diverge.
    ///
    /// The loss that follows a checkpoint does not depend on the learning rate before the next
    /// update, so `--resume auto` would fail again from it.
    pub(super) fn abandon(&mut self, error: &TrainError) {
        let state = match error {
            TrainError::Diverged { state, .. } => *state,
            // No step has succeeded with its parameters since, at any loss scale.
            TrainError::Parallel(ParallelError::LossScale(_)) => self.applied,
            _ => return,
        };
        // Waits for a checkpoint that is still being written.
        drop(self.checkpoints.take());
        let is_ours = |lock: &RunLock| lock.check_held().is_ok();
        let Some(run_dir) = &self.run_dir else {
            return;
        };
        if !self.lock.as_deref().is_some_and(is_ours) {
            return;
        }
        let folder = run_dir.join(CHECKPOINTS);
        let told = match checkpoint::abandon_after(&folder, state.saturating_sub(1)) {
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
