//! Decides whether every rank of a host has a CPU of its own, and may therefore spin while it
//! waits.
//!
//! No rank knows the number of CPUs alone: under a launcher that binds ranks to CPUs, such as
//! Slurm, each rank sees only its own.

use std::thread::available_parallelism;

use rustix::thread::{CpuSet, sched_getaffinity};
use serde::{Deserialize, Serialize};

/// CPUs that this process may use, one bit each.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(from = "Vec<u8>")]
pub(super) struct Processors(Vec<u8>);

impl From<Vec<u8>> for Processors {
    fn from(bits: Vec<u8>) -> Self {
        Self::from_bytes(&bits)
    }
}

impl Processors {
    /// Reads them from the system; empty if the system does not say.
    pub fn of_this_process() -> Self {
        let Ok(set) = sched_getaffinity(None) else {
            return Self::default();
        };
        let mut bits = vec![0u8; CpuSet::MAX_CPU.div_ceil(8)];
        for processor in (0..CpuSet::MAX_CPU).filter(|processor| set.is_set(*processor)) {
            bits[processor / 8] |= 1 << (processor % 8);
        }
        Self::from_bytes(&bits)
    }

    /// Decodes the bits of one process.
    pub fn from_bytes(bits: &[u8]) -> Self {
        let used = bits.iter().rposition(|byte| *byte != 0);
        Self(bits[..used.map_or(0, |last| last + 1)].to_vec())
    }

    fn count(&self) -> usize {
        self.0.iter().map(|byte| byte.count_ones() as usize).sum()
    }
}

/// Whether the `ranks` together have at least one CPU each. `own` are the CPUs of this process.
pub(super) fn are_enough(ranks: &[&Processors], own: &Processors) -> bool {
    let parallel = available_parallelism().map_or(1, usize::from);
    available(ranks, parallel, own.count()) >= ranks.len()
}

/// Number of CPUs that all ranks have together. `own` is the number that this process may use, and
/// `parallel` the number of threads that it can run at a time.
fn available(ranks: &[&Processors], parallel: usize, own: usize) -> usize {
    if parallel < own || ranks.iter().any(|rank| rank.count() == 0) {
        // Below `own`, a CPU time limit holds for all ranks of a container together. (It does not
        // show if it allows more than this rank's own CPUs.) An empty set means that nobody knows.
        return parallel;
    }
    let bytes = ranks.iter().map(|rank| rank.0.len()).max().unwrap_or(0);
    let bit_of_any = |at: usize| {
        let byte = |rank: &&Processors| rank.0.get(at).copied().unwrap_or(0);
        ranks.iter().map(byte).fold(0, std::ops::BitOr::bitor)
    };
    let bits = (0..bytes).map(bit_of_any);
    bits.map(|byte: u8| byte.count_ones() as usize).sum()
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;
    use crate::{GroupOptions, ProcessGroup};

    fn processors(bits: &[u8]) -> Processors {
        Processors::from_bytes(bits)
    }

    #[test]
    fn ranks_that_are_bound_have_theirs_together() {
        let bound = [0b1, 0b10, 0b100].map(|bits| processors(&[bits]));
        assert_eq!(available(&bound.each_ref(), 1, 1), 3);
        let far = [processors(&[1]), processors(&[0, 0, 1, 0])];
        assert_eq!(far[1].0, [0, 0, 1]);
        assert_eq!(available(&far.each_ref(), 1, 1), 2);
    }

    #[test]
    fn ranks_may_have_to_share() {
        assert_eq!(available(&[&processors(&[0b11]); 4], 2, 2), 2);
        assert_eq!(available(&[&processors(&[0b10]); 2], 1, 1), 1);
    }

    #[test]
    fn a_limit_to_the_time_counts_for_all() {
        assert_eq!(available(&[&processors(&[0xff]); 4], 2, 8), 2);
    }

    #[test]
    fn where_nobody_knows_a_rank_counts_with_its_own() {
        assert_eq!(available(&[&processors(&[]), &processors(&[1])], 6, 1), 6);
    }

    #[test]
    fn parts_of_a_group_share_those_of_the_whole() {
        let groups = ProcessGroup::in_process(3, &GroupOptions::default()).unwrap();
        thread::scope(|scope| {
            for whole in groups {
                scope.spawn(move || {
                    // With two CPUs each part alone has enough.
                    let part = whole.split(whole.rank() as u64 / 2, 0).unwrap();
                    let has_processor = |group: &ProcessGroup| group.queue.place.has_processor;
                    assert!(part.size() == 1 || has_processor(&part) == has_processor(&whole));
                    whole.barrier().unwrap();
                });
            }
        });
    }

    #[test]
    fn this_process_may_use_some() {
        let own = Processors::of_this_process();
        assert!(own.count() >= available_parallelism().unwrap().get());
        assert_eq!(processors(&own.0), own);
        assert!(are_enough(&[&own], &own));
    }
}
