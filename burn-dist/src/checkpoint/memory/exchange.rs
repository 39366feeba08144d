//! Copies of shards on other nodes.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use super::slot::Record;
use super::{PIECE, told};
use crate::ProcessGroup;
use crate::checkpoint::{CheckpointError, shard};

/// Ranks of two or three nodes that keep copies of each other's shards.
#[derive(Debug)]
pub(super) struct Partners {
    group: ProcessGroup,
    /// Which members are on other nodes.
    is_elsewhere: Vec<bool>,
}

impl Partners {
    /// Divides the ranks, whose nodes have these marks. A collective call. `None` on a single node.
    pub(super) fn among(
        marks: &[u64],
        group: &ProcessGroup,
    ) -> Result<Option<Self>, CheckpointError> {
        let sets = sets(marks);
        let (Some(sets), Some(own)) = (sets, marks.get(group.rank())) else {
            return Ok(None);
        };
        let set = sets.get(group.rank()).copied().unwrap_or_default();
        let group = told(group.split(set, group.rank() as u64))?;
        let members = marks.iter().zip(&sets).filter(|(_, of)| **of == set);
        let is_elsewhere = members.map(|(mark, _)| mark != own).collect();
        Ok(Some(Self {
            group,
            is_elsewhere,
        }))
    }

    /// Writes copies of the partners' shards behind the own one, which is at the slot's beginning
    /// unless this rank has none. A collective call of the partners.
    ///
    /// # Errors
    /// The outer error is that of a rank; the inner one is that of this rank's memory.
    pub(super) fn exchange(
        &self,
        own: Option<&Record>,
        slot: &Arc<File>,
    ) -> Result<Result<Vec<Record>, CheckpointError>, CheckpointError> {
        let head = serde_json::to_vec(&own).unwrap_or_default();
        let heads = told(self.group.gather_bytes(&head))?;
        let mut end = own.map_or(0, Record::end);
        let mut copies: Vec<Option<Record>> = Vec::with_capacity(heads.len());
        let mut shortest = u64::MAX;
        let mut lengths = Vec::with_capacity(heads.len());
        for (head, is_elsewhere) in heads.iter().zip(&self.is_elsewhere) {
            let record: Option<Record> = serde_json::from_slice(head).unwrap_or_default();
            let length = record.as_ref().map_or(0, |record| record.entry.bytes);
            shortest = shortest.min(length);
            lengths.push(length);
            copies.push(record.filter(|_| *is_elsewhere).map(|mut record| {
                record.start = end;
                end = record.end();
                record
            }));
        }
        let mut moved = Ok(());
        let members = self.group.size();
        let mut buffer = vec![0; members * PIECE];
        // All send at once as long as all have something to send.
        for from in (0..shortest).step_by(PIECE) {
            let len = PIECE.min((shortest - from) as usize);
            let pieces = &mut buffer[..members * len];
            let place = self.group.rank() * len;
            if moved.is_ok() {
                moved = slot.read_exact_at(&mut pieces[place..place + len], from);
            }
            told(self.group.all_gather(pieces))?;
            for (piece, copy) in pieces.chunks_exact(len).zip(&copies) {
                if let Some(copy) = copy.as_ref().filter(|_| moved.is_ok()) {
                    moved = slot.write_all_at(piece, copy.start + from);
                }
            }
        }
        for (member, (length, copy)) in lengths.into_iter().zip(&copies).enumerate() {
            for from in (shortest..length).step_by(PIECE) {
                let piece = &mut buffer[..PIECE.min((length - from) as usize)];
                if member == self.group.rank() && moved.is_ok() {
                    moved = slot.read_exact_at(piece, from);
                }
                told(self.group.broadcast(piece, member))?;
                if let Some(copy) = copy.as_ref().filter(|_| moved.is_ok()) {
                    moved = slot.write_all_at(piece, copy.start + from);
                }
            }
        }
        let path = shard::in_memory("copies");
        let moved = moved.map_err(CheckpointError::io("write", &path));
        Ok(moved.map(|()| copies.into_iter().flatten().collect()))
    }
}

/// The set of every rank, by the marks of their nodes. `None` on a single node.
///
/// Nodes form pairs, the last three a set if their number is odd. Each set of ranks has at least
/// one of each of its nodes.
fn sets(marks: &[u64]) -> Option<Vec<u64>> {
    let mut nodes: Vec<u64> = Vec::new();
    for mark in marks {
        if !nodes.contains(mark) {
            nodes.push(*mark);
        }
    }
    if nodes.len() < 2 {
        return None;
    }
    let pairs = nodes.len() / 2;
    let node_of = |mark: u64| nodes.iter().position(|node| *node == mark).unwrap_or(0);
    let pair_of = |mark: u64| (node_of(mark) / 2).min(pairs - 1);
    let ranks_of = |node: u64| marks.iter().filter(|mark| **mark == node).count();
    let sets = marks.iter().enumerate().map(|(rank, mark)| {
        let pair = pair_of(*mark);
        let others = nodes.iter().filter(|node| pair_of(**node) == pair);
        let sets = others.map(|node| ranks_of(*node)).min().unwrap_or(1).max(1);
        let before = marks.iter().take(rank);
        let local = before.filter(|other| *other == mark).count();
        (pair * marks.len() + local % sets) as u64
    });
    Some(sets.collect())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn equal_nodes_form_pairs_of_ranks() {
        assert_eq!(sets(&[1, 1, 2, 2]), Some(vec![0, 1, 0, 1]));
        assert_eq!(sets(&[1, 2, 3, 4]), Some(vec![0, 0, 4, 4]));
        assert_eq!(sets(&[1, 2, 3]), Some(vec![0, 0, 0]));
        assert_eq!(sets(&[5, 5]), None);
    }

    proptest! {
        /// However many ranks each node has, every rank has a partner on another node.
        #[test]
        fn every_rank_has_a_partner_elsewhere(ranks in prop::collection::vec(1usize..5, 2..8)) {
            let marks = ranks.iter().zip(10..);
            let marks: Vec<u64> = marks.flat_map(|(n, mark)| vec![mark; *n]).collect();
            let sets = sets(&marks).unwrap();
            for (mark, set) in marks.iter().zip(&sets) {
                let mut others = marks.iter().zip(&sets);
                prop_assert!(others.any(|(other, of)| of == set && other != mark));
            }
        }
    }
}
