//! Checkpoints in memory: they survive the loss of a rank or of a node, without a disk.
//!
//! An agent ([`NodeLauncher::keep_memory`](crate::launch::NodeLauncher::keep_memory)) holds memory
//! for the ranks of its node. After each step, a rank writes its shard of the state there, and a
//! rank of another node keeps a copy. If a rank or a node is lost, the next ranks find every shard
//! on some node. They need not be as many. A node has two slots for each rank: the last complete
//! state stays until the next one is.
//!
//! ```no_run
//! use burn::module::Module;
//! use burn_dist::ProcessGroup;
//! use burn_dist::checkpoint::{CheckpointError, MemoryCopies, NodeMemory};
//! use burn_dist::parallel::Parallel;
//!
//! # fn step<M: Module>(_: &mut Parallel<M>, _: u64) {}
//! fn train<M: Module>(
//!     parallel: &mut Parallel<M>,
//!     group: &ProcessGroup,
//! ) -> Result<(), Box<dyn std::error::Error>> {
//!     let memory = NodeMemory::of_agent()?;
//!     let (mut copies, newest) = MemoryCopies::open(memory, group)?;
//!     let mut done = 0;
//!     if let Some(source) = newest {
//!         parallel.restore(&source)?;
//!         done = source.manifest().step;
//!     }
//!     for number in done + 1..=1000 {
//!         step(parallel, number);
//!         if let Some(copies) = &mut copies {
//!             copies.keep(group, number, parallel.state()?, &serde_json::json!(null))?;
//!         }
//!     }
//!     Ok(())
//! }
//! ```

mod exchange;
mod search;
mod slot;

use std::fs::File;
use std::sync::Arc;

use serde_json::Value;

use self::exchange::Partners;
use self::search::Search;
use self::slot::{Moment, Record};
use super::{CheckpointError, Source, shard};
use crate::node_memory::{NodeMemory, SLOTS};
use crate::parallel::{ParallelError, StateShare};
use crate::{ProcessGroup, ReduceOp};

/// Bytes of a shard that travel at a time.
const PIECE: usize = 4 << 20;

/// This rank's slots in the memory of its node.
#[derive(Debug)]
pub struct MemoryCopies {
    memory: NodeMemory,
    /// Number of this rank among those of its node.
    local: usize,
    /// Ranks of other nodes that keep copies of each other's shards.
    partners: Option<Partners>,
    /// Moment of the last state that was begun.
    moment: Moment,
    /// The slot with the last complete state.
    held: Option<usize>,
    /// Whether the memory may have what other nodes sent to restore a state.
    has_incoming: bool,
    /// Why the newest state was not restored.
    unrestored: Option<CheckpointError>,
}

impl MemoryCopies {
    /// Opens the memory, and finds the newest state that its nodes have a whole of. A collective
    /// call.
    ///
    /// Returns no copies if a rank has no memory. The state, if any, is readable until the first
    /// [`keep`](Self::keep). Nodes get the shards that they lack from the others, so each needs
    /// memory for the whole state while it is restored. If one has too little, no rank gets a
    /// state, and [`unrestored`](Self::unrestored) says so.
    ///
    /// # Errors
    /// Fails if the memory cannot be read or written, or if a rank failed.
    pub fn open(
        memory: Option<NodeMemory>,
        group: &ProcessGroup,
    ) -> Result<(Option<Self>, Option<Source>), CheckpointError> {
        let mark = memory.as_ref().map_or(0, NodeMemory::mark);
        let marks = told(group.gather_bytes(&mark.to_le_bytes()))?;
        let marks: Vec<u64> = marks
            .iter()
            .map(|mark| mark.as_slice().try_into().map_or(0, u64::from_le_bytes))
            .collect();
        let Some(memory) = memory.filter(|_| !marks.contains(&0)) else {
            return Ok((None, None));
        };
        let before = marks.iter().take(group.rank());
        let local = before.filter(|other| **other == mark).count();
        if local >= memory.ranks() {
            let reason = format!("it is for {} ranks", memory.ranks());
            return Err(CheckpointError::damaged(&shard::in_memory(""), reason));
        }
        let partners = Partners::among(&marks, group)?;
        let search = Search::start(&memory, local, &marks, group)?;
        let found = search.newest();
        let held = |moment| (0..SLOTS).find(|slot| search.holds(local * SLOTS + slot, moment));
        let held = found.as_ref().and_then(|found| held(found.moment));
        let source = match found {
            Some(found) => Some(search.collect(&found, &memory, group)?),
            None => None,
        };
        let (source, unrestored) = match source.transpose() {
            Ok(source) => (source, None),
            Err(error) => (None, Some(error)),
        };
        let copies = Self {
            local,
            partners,
            moment: search.first_moment(),
            held,
            has_incoming: source.is_some(),
            unrestored,
            memory,
        };
        Ok((Some(copies), source))
    }

    /// Why [`open`](Self::open) found a state that it could not restore on all nodes.
    pub fn unrestored(&self) -> Option<&CheckpointError> {
        self.unrestored.as_ref()
    }

    /// Keeps the state after `step` steps. A collective call.
    ///
    /// `meta` is the caller's own data, needed to resume; rank 0's counts. Returns whether all
    /// ranks kept their shards. If not, the state before stays.
    ///
    /// # Errors
    /// Fails if a rank failed, if this rank's shard contains NaN or infinity, or if the memory does
    /// not take it. After the last two, the ranks may go on.
    pub fn keep(
        &mut self,
        group: &ProcessGroup,
        step: u64,
        state: StateShare,
        meta: &Value,
    ) -> Result<bool, CheckpointError> {
        self.moment.number += 1;
        self.moment.step = step;
        let next = self.held.map_or(0, |held| (held + 1) % SLOTS);
        let slot = self.slot(next)?;
        let begun = slot::begin(&slot).map_err(CheckpointError::io("write", &shard::in_memory("")));
        let own = begun.and_then(|()| self.write_own(&slot, group, state, meta));
        let (own, mut failed) = match own {
            Ok(record) => (Some(record), None),
            Err(error) => (None, Some(error)),
        };
        let mut records = Vec::from_iter(own);
        if let Some(partners) = &self.partners {
            // The others wait for this rank, whatever failed here.
            let copied = partners.exchange(records.first(), &slot)?;
            match copied {
                Ok(copies) => records.extend(copies),
                Err(error) => failed = failed.or(Some(error)),
            }
        }
        if failed.is_none() {
            let path = shard::in_memory("table");
            let complete = slot::complete(&slot, &records);
            failed = complete.map_err(CheckpointError::io("write", &path)).err();
        }
        let mut all = [i64::from(failed.is_none())];
        told(group.all_reduce(&mut all, ReduceOp::Min))?;
        let is_complete = all == [1];
        if is_complete {
            self.held = Some(next);
        }
        // All ranks are here, so none reads what it restored any more.
        if std::mem::take(&mut self.has_incoming)
            && self.local == 0
            && let Some(incoming) = self.memory.incoming()
        {
            let _ = incoming.set_len(0);
        }
        match failed {
            Some(error) => Err(error),
            None => Ok(is_complete),
        }
    }

    fn slot(&self, index: usize) -> Result<Arc<File>, CheckpointError> {
        let slot = self.memory.slots().get(self.local * SLOTS + index);
        let missing = || CheckpointError::damaged(&shard::in_memory(""), "a slot is missing");
        slot.cloned().ok_or_else(missing)
    }

    fn write_own(
        &self,
        slot: &Arc<File>,
        group: &ProcessGroup,
        state: StateShare,
        meta: &Value,
    ) -> Result<Record, CheckpointError> {
        let (rank, size) = (group.rank(), group.size());
        let values = state.read()?;
        if let Some((name, value)) = values.first_not_finite() {
            return Err(CheckpointError::NotFinite {
                rank,
                step: self.moment.step,
                name: name.to_owned(),
                value,
            });
        }
        Ok(Record {
            moment: self.moment,
            rank,
            size,
            entry: slot::write(slot, shard::file_name(rank, size), values)?,
            meta: match rank {
                0 => meta.clone(),
                _ => Value::Null,
            },
            start: 0,
        })
    }
}

/// The result of a collective.
fn told<T>(result: Result<T, crate::Error>) -> Result<T, CheckpointError> {
    Ok(result.map_err(ParallelError::from)?)
}
