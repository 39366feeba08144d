//! Finds the newest state that all nodes together have, and brings its shards to every node.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::slot::{self, Moment, Record};
use super::{PIECE, told};
use crate::checkpoint::{CheckpointError, Manifest, Source, shard};
use crate::node_memory::NodeMemory;
use crate::{ProcessGroup, ReduceOp};

/// The shards of a node. Its first rank tells them.
#[derive(Debug, Default, Serialize, Deserialize)]
struct Content {
    /// Random number.
    random: u64,
    /// Shards, each with the number of its slot.
    found: Vec<(usize, Record)>,
}

/// The shards of all nodes, by their first ranks.
#[derive(Debug)]
pub(super) struct Search {
    nodes: BTreeMap<usize, Content>,
    /// First rank of this rank's node.
    own: usize,
    is_first: bool,
    ranks: u64,
}

/// A whole state: every shard is on some node.
#[derive(Debug)]
pub(super) struct Found {
    pub moment: Moment,
    size: usize,
}

impl Search {
    /// A collective call of all ranks, whose nodes have these marks. This one is number `local` of
    /// its node.
    pub(super) fn start(
        memory: &NodeMemory,
        local: usize,
        marks: &[u64],
        group: &ProcessGroup,
    ) -> Result<Self, CheckpointError> {
        let content = match local {
            0 => Content {
                random: getrandom::u64().unwrap_or_else(|_| std::process::id().into()),
                found: found_in(memory),
            },
            _ => Content::default(),
        };
        let message = serde_json::to_vec(&content).unwrap_or_default();
        let all = told(group.gather_bytes(&message))?;
        let own = marks.get(group.rank());
        let first_of = |mark| marks.iter().position(|other| Some(other) == mark);
        let mut nodes = BTreeMap::new();
        for (rank, content) in all.iter().enumerate() {
            if first_of(marks.get(rank)) != Some(rank) {
                continue;
            }
            let content = serde_json::from_slice(content).map_err(|error| {
                let reason = format!("rank {rank} cannot be understood: {error}");
                CheckpointError::damaged(&shard::in_memory("table"), reason)
            })?;
            nodes.insert(rank, content);
        }
        let ranks = nodes.get(&0).map_or(0, |first: &Content| first.random);
        Ok(Self {
            nodes,
            own: first_of(own).unwrap_or_default(),
            is_first: local == 0,
            ranks,
        })
    }

    /// The moment before these ranks' first state. It is later than all that were found.
    pub(super) fn first_moment(&self) -> Moment {
        let found = self.nodes.values().flat_map(|node| &node.found);
        let last = found.map(|(_, record)| record.moment.generation).max();
        Moment {
            generation: last.unwrap_or(0).saturating_add(1),
            number: 0,
            ranks: self.ranks,
            step: 0,
        }
    }

    /// The newest whole state.
    pub(super) fn newest(&self) -> Option<Found> {
        let mut states: BTreeMap<(Moment, usize), BTreeSet<usize>> = BTreeMap::new();
        for (_, record) in self.nodes.values().flat_map(|node| &node.found) {
            let state = states.entry((record.moment, record.size)).or_default();
            state.insert(record.rank);
        }
        let is_whole = |size: usize, ranks: &BTreeSet<usize>| ranks.range(..size).count() == size;
        let newest = states
            .into_iter()
            .rev()
            .find(|((_, size), ranks)| *size > 0 && is_whole(*size, ranks));
        newest.map(|((moment, size), _)| Found { moment, size })
    }

    /// Whether this slot of this rank's node has a part of the state at `moment`.
    pub(super) fn holds(&self, slot: usize, moment: Moment) -> bool {
        let own = self.nodes.get(&self.own).map(|node| &node.found);
        let mut own = own.into_iter().flatten();
        own.any(|(of, record)| *of == slot && record.moment == moment)
    }

    /// Opens the state, after each node has got the shards that it lacks. A collective call.
    ///
    /// # Errors
    /// The outer error is that of a rank; the inner one is that of a node's memory, and all ranks
    /// have one then.
    pub(super) fn collect(
        &self,
        state: &Found,
        memory: &NodeMemory,
        group: &ProcessGroup,
    ) -> Result<Result<Source, CheckpointError>, CheckpointError> {
        let path = shard::in_memory("copies");
        let missing = || CheckpointError::damaged(&path, "a shard is missing");
        let incoming = memory.incoming().ok_or_else(missing)?;
        // The others wait for this rank, whatever fails here.
        let mut moved = match self.is_first {
            true => incoming.set_len(0),
            false => Ok(()),
        };
        let mut buffer = vec![0; PIECE];
        // End of what this node has got.
        let mut end = 0;
        let (mut shards, mut meta) = (Vec::new(), None);
        for rank in 0..state.size {
            let holders = self.nodes.iter().filter_map(|(first, node)| {
                let is_it = |record: &Record| record.moment == state.moment && record.rank == rank;
                let found = node.found.iter().find(|(_, record)| is_it(record));
                found.map(|(slot, record)| (*first, (*slot, record)))
            });
            let holders: BTreeMap<usize, (usize, &Record)> = holders.collect();
            let (source, (slot, record)) = holders.first_key_value().ok_or_else(missing)?;
            let entry = record.entry.clone();
            let of_node = |slot: usize| memory.slots().get(slot).cloned().ok_or_else(missing);
            let place = match holders.get(&self.own) {
                Some((slot, record)) => (of_node(*slot)?, record.start),
                None => (Arc::clone(incoming), end),
            };
            if holders.len() < self.nodes.len() {
                let lacks = self.is_first && !holders.contains_key(&self.own);
                for from in (0..entry.bytes).step_by(PIECE) {
                    let len = PIECE.min((entry.bytes - from) as usize);
                    let piece = &mut buffer[..len];
                    if group.rank() == *source {
                        let slot = of_node(*slot)?;
                        let read = slot.read_exact_at(piece, record.start + from);
                        moved = moved.and(read);
                    }
                    told(group.broadcast(piece, *source))?;
                    if lacks && moved.is_ok() {
                        moved = incoming.write_all_at(piece, end + from);
                    }
                }
            }
            if !holders.contains_key(&self.own) {
                end += entry.bytes;
            }
            if rank == 0 {
                meta = Some(record.meta.clone());
            }
            shards.push((place, entry));
        }
        let mut all = [i64::from(moved.is_ok())];
        told(group.all_reduce(&mut all, ReduceOp::Min))?;
        if all != [1] {
            if self.is_first {
                let _ = incoming.set_len(0);
            }
            let elsewhere = || io::Error::other("another node could not copy it");
            let error = moved.err().unwrap_or_else(elsewhere);
            return Ok(Err(CheckpointError::io("copy", &path)(error)));
        }
        let entries = shards.iter().map(|(_, entry)| entry.clone()).collect();
        let manifest = Manifest::new(state.moment.step, entries, meta.unwrap_or_default());
        let places = shards.into_iter().map(|(place, _)| place);
        Source::in_memory(manifest, places).map(Ok)
    }
}

/// The shards in the slots of this node.
fn found_in(memory: &NodeMemory) -> Vec<(usize, Record)> {
    let slots = memory.slots().iter().enumerate();
    slots
        .flat_map(|(number, slot)| {
            slot::read(slot)
                .into_iter()
                .map(move |record| (number, record))
        })
        .collect()
}
