//! The ranks of a group among all ranks of the run.
//!
//! Inside a group ranks count from 0. Messages use the number in the world, as launchers, logs and
//! other groups do.

use std::sync::Arc;

use crate::collective::{Descriptor, Kind};
use crate::transport::TransportError;

/// Bits of a progress number that count the collectives of one group. Bits above [`BUSY`] hold the
/// group's number.
const SEQUENCE_BITS: u32 = 47;

/// Set in the progress number of a rank that is busy with files.
pub(super) const BUSY: u64 = 1 << SEQUENCE_BITS;

/// The ranks of a group.
#[derive(Clone, Debug)]
pub(crate) struct Members {
    /// 0 for the group of all ranks. No rank is in two groups with the same number.
    number: u64,
    /// The rank in the world, by rank in the group.
    ranks: Arc<[usize]>,
}

impl Members {
    /// All ranks of a world of `size` ranks.
    pub(crate) fn all(size: usize) -> Self {
        Self::some(0, (0..size).collect())
    }

    /// Some ranks of the world, as group `number`.
    pub(super) fn some(number: u64, ranks: Vec<usize>) -> Self {
        Self {
            number,
            ranks: ranks.into(),
        }
    }

    pub(crate) fn number(&self) -> u64 {
        self.number
    }

    /// The rank in the world, by rank in the group.
    pub(crate) fn ranks(&self) -> &Arc<[usize]> {
        &self.ranks
    }

    /// Rank in the world of the group's rank `rank`.
    pub(super) fn in_world(&self, rank: usize) -> usize {
        self.ranks.get(rank).copied().unwrap_or(rank)
    }

    /// The progress number of a rank that has reached collective `sequence` of this group.
    pub(super) fn progress(&self, sequence: u64) -> u64 {
        self.number << (SEQUENCE_BITS + 1) | sequence
    }

    /// The collective that a rank with this progress number has reached: `Ok` in this group, `Err`
    /// in another one.
    pub(super) fn reached(&self, progress: u64) -> Result<u64, u64> {
        let sequence = progress & (BUSY - 1);
        match progress >> (SEQUENCE_BITS + 1) == self.number {
            true => Ok(sequence),
            false => Err(sequence),
        }
    }

    /// Whether a rank with this progress number is busy with files.
    pub(super) fn is_busy(progress: u64) -> bool {
        progress & BUSY != 0
    }

    /// A collective, with its root as a rank in the world.
    pub(super) fn describe(&self, what: Descriptor) -> Descriptor {
        if what.kind != Kind::Broadcast {
            return what;
        }
        let root = self.in_world(usize::from(what.root));
        Descriptor {
            root: root as u16,
            ..what
        }
    }

    /// An error, with its ranks as ranks in the world.
    pub(super) fn name(&self, error: TransportError) -> TransportError {
        error.renamed(|rank| self.in_world(rank))
    }

    /// The group's name for file names and for messages. `None` for the group of all ranks.
    pub(super) fn label(&self) -> Option<(String, String)> {
        if self.number == 0 {
            return None;
        }
        let ranks: Vec<_> = self.ranks.iter().map(ToString::to_string).collect();
        let file = format!("group-{}", self.number);
        Some((file, format!("the group of ranks {}", ranks.join(", "))))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn progress_tells_groups_apart() {
        let (world, some) = (Members::all(4), Members::some(3, vec![2, 0]));
        assert_eq!(world.progress(17), 17);
        assert_eq!(some.reached(some.progress(17)), Ok(17));
        assert_eq!(some.reached(world.progress(5)), Err(5));
        assert_eq!(some.reached(some.progress(17) | BUSY), Ok(17));
        assert_eq!([some.in_world(0), some.in_world(1)], [2, 0]);
    }
}
