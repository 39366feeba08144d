//! The board on which a rank finds what went wrong elsewhere.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

/// Why the run can't go on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// The rank that failed; `None` when the store itself is gone.
    pub rank: Option<usize>,
    /// What is known of it.
    pub reason: String,
}

impl Fault {
    /// Of a rank that is done while others are not.
    pub(crate) fn left(rank: usize) -> Self {
        let reason = "it finished and left the group while others still waited for it";
        Self {
            rank: Some(rank),
            reason: reason.into(),
        }
    }
}

impl std::fmt::Display for Fault {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.rank {
            Some(rank) => write!(f, "rank {rank} failed: {}", self.reason),
            None => f.write_str(&self.reason),
        }
    }
}

/// The first [`Fault`] of the run, and which ranks are done. Clones show the same board.
///
/// Made to be asked inside waiting loops: while nothing is wrong, [`FaultBoard::get`] is one load.
#[derive(Clone, Debug)]
pub struct FaultBoard {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    fault: OnceLock<Fault>,
    left: Vec<AtomicBool>,
}

impl FaultBoard {
    pub(crate) fn new(size: usize) -> Self {
        let left = std::iter::repeat_with(AtomicBool::default).take(size);
        Self {
            inner: Arc::new(Inner {
                fault: OnceLock::new(),
                left: left.collect(),
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

    /// Whether `rank` said that it is done. Waiting for it is then in vain.
    pub fn left(&self, rank: usize) -> bool {
        let left = self.inner.left.get(rank);
        left.is_some_and(|left| left.load(Ordering::Acquire))
    }

    /// Notes a fault; only the first counts.
    pub(crate) fn record(&self, fault: Fault) {
        let _ = self.inner.fault.set(fault);
    }

    pub(crate) fn record_left(&self, rank: usize) {
        if let Some(left) = self.inner.left.get(rank) {
            left.store(true, Ordering::Release);
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
        let board = FaultBoard::new(2);
        board.record_left(1);
        board.record_left(9);
        assert_eq!(
            [board.left(0), board.left(1), board.left(9)],
            [false, true, false]
        );
        assert!(!board.is_faulty());
    }
}
