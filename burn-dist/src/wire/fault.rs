//! The board with failures of other ranks.

use std::sync::{Arc, OnceLock};

/// The reason why the run cannot go on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// The rank that failed; `None` if the store itself is gone.
    pub rank: Option<usize>,
    /// The known details.
    pub reason: String,
}

impl Fault {}

impl std::fmt::Display for Fault {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.rank {
            Some(rank) => write!(f, "rank {rank} failed: {}", self.reason),
            None => f.write_str(&self.reason),
        }
    }
}

/// The first [`Fault`] of the run, and the ranks that are done. Clones share one board.
///
/// Made for waiting loops: while nothing is wrong, [`FaultBoard::get`] is one load.
#[derive(Clone, Debug)]
pub struct FaultBoard {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    fault: OnceLock<Fault>,
    /// The reason why a rank left, once it has; by rank.
    gone: Vec<OnceLock<&'static str>>,
}

impl FaultBoard {
    pub(crate) fn new(size: usize) -> Self {
        let gone = std::iter::repeat_with(OnceLock::new).take(size);
        Self {
            inner: Arc::new(Inner {
                fault: OnceLock::new(),
                gone: gone.collect(),
            }),
        }
    }

    /// The first fault, if there was one.
    pub fn get(&self) -> Option<Fault> {
        self.inner.fault.get().cloned()
    }

    /// Whether there was a fault.
    pub fn is_faulty(&self) -> bool {
        self.inner.fault.get().is_some()
    }

    /// Whether `rank` has left, so that waiting for it is pointless.
    ///
    /// It said that it is done, or is known to have ended.
    pub fn left(&self, rank: usize) -> bool {
        self.inner
            .gone
            .get(rank)
            .is_some_and(|gone| gone.get().is_some())
    }

    /// The fault of a rank that waits for `rank` after that has left.
    pub(crate) fn left_behind_by(&self, rank: usize) -> Option<Fault> {
        let reason = self.inner.gone.get(rank)?.get()?;
        Some(Fault {
            rank: Some(rank),
            reason: (*reason).into(),
        })
    }

    /// Records a fault; only the first counts.
    pub(crate) fn record(&self, fault: Fault) {
        let _ = self.inner.fault.set(fault);
    }

    /// Records that `rank` said that it is done.
    pub(crate) fn record_left(&self, rank: usize) {
        self.record_gone(
            rank,
            "it finished and left the group while others still waited for it. If ranks have \
             different numbers of batches, use `Parallel::join`",
        );
    }

    /// Records that the process of `rank` has ended, if nobody can tell any more whether it was
    /// done.
    pub(crate) fn record_ended(&self, rank: usize) {
        self.record_gone(rank, "its process has ended");
    }

    fn record_gone(&self, rank: usize, what: &'static str) {
        if let Some(gone) = self.inner.gone.get(rank) {
            let _ = gone.set(what);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_fault_stays() {
        let board = FaultBoard::new(3);
        let other = board.clone();
        assert_eq!(board.get(), None);
        for rank in [Some(2), None, Some(1)] {
            other.record(Fault {
                rank,
                reason: "no memory".into(),
            });
        }
        assert!(board.is_faulty());
        let fault = board.get().unwrap();
        assert_eq!(fault.to_string(), "rank 2 failed: no memory");
    }

    #[test]
    fn ranks_that_left_are_known() {
        let board = FaultBoard::new(3);
        board.record_left(1);
        board.record_left(9);
        assert_eq!(
            [board.left(0), board.left(1), board.left(9)],
            [false, true, false]
        );
        assert!(!board.is_faulty());
        assert_eq!(board.left_behind_by(0), None);
        let fault = board.left_behind_by(1).unwrap();
        assert!(fault.reason.starts_with("it finished"), "{fault}");
        board.record_ended(1);
        assert_eq!(board.left_behind_by(1), Some(fault));
        board.record_ended(2);
        let fault = board.left_behind_by(2).unwrap();
        assert_eq!(fault.to_string(), "rank 2 failed: its process has ended");
    }
}
