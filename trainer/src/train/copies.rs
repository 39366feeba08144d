//! Keeps copies of the state in the memory of agents, and reports failures.

use burn_dist::ProcessGroup;
use burn_dist::checkpoint::{CheckpointError, MemoryCopies, NodeMemory, Source};
use burn_dist::parallel::StateShare;

use crate::error::TrainError;
use crate::system::output::complain;
use crate::train::progress::Meta;

/// Copies of the state after the last steps.
#[derive(Debug)]
pub(crate) struct Copies {
    copies: MemoryCopies,
    rank: usize,
    /// Whether the user knows that copies fail.
    has_warned: bool,
}

impl Copies {
    /// Opens the memory of this node's agent, and finds the newest state in that of all. Nothing
    /// without agents. A collective call.
    pub fn open(group: &ProcessGroup) -> Result<(Option<Self>, Option<Source>), TrainError> {
        let memory = NodeMemory::of_agent();
        if let Err(error) = &memory {
            complain(&format!(
                "warning: rank {}: no copies in memory: {error}",
                group.rank()
            ));
        }
        let (copies, newest) = MemoryCopies::open(memory.ok().flatten(), group)?;
        if let Some(error) = copies.as_ref().and_then(MemoryCopies::unrestored) {
            complain(&format!(
                "warning: rank {}: the state in memory is not restored: {error}",
                group.rank()
            ));
        }
        let of_rank = |copies| Self {
            copies,
            rank: group.rank(),
            has_warned: false,
        };
        Ok((copies.map(of_rank), newest))
    }

    /// Keeps a state. A collective call. If memory is full, the run goes on with the copy before.
    pub fn keep(
        &mut self,
        group: &ProcessGroup,
        state: StateShare,
        meta: &Meta,
    ) -> Result<(), TrainError> {
        let step = meta.progress.steps;
        let data = match group.rank() {
            0 => serde_json::to_value(meta).unwrap_or_default(),
            _ => serde_json::Value::Null,
        };
        match self.copies.keep(group, step, state, &data) {
            // The rank that could not has said so.
            Ok(_) => self.has_warned = false,
            Err(CheckpointError::NotFinite { name, value, .. }) => {
                return Err(TrainError::Diverged {
                    what: format!("{name} after step {step}"),
                    value,
                    state: step,
                });
            }
            Err(error @ CheckpointError::State(_)) => return Err(error.into()),
            Err(error) if self.has_warned => drop(error),
            Err(error) => {
                self.has_warned = true;
                complain(&format!(
                    "warning: rank {}: no copy in memory after step {step}; the run continues: \
                     {error}",
                    self.rank
                ));
            }
        }
        Ok(())
    }
}
