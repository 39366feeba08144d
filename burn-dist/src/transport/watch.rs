//! How long a rank may wait, and what else ends the wait.
//!
//! Every wait of every transport goes through a [`Watch`], so that a dead or silent peer becomes
//! an error within the time-out wherever it happens.

use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::deadline::Allowance;
use crate::rendezvous::{Fault, FaultBoard};

/// The longest a rank sleeps before it looks at the fault board and the clock again.
const SLICE: Duration = Duration::from_millis(50);

/// How long what a peer sent before it left may still be on its way.
const FAREWELL: Duration = Duration::from_secs(1);

/// A deadline and the news of failed peers, for one collective.
#[derive(Debug)]
pub struct Watch {
    clock: Rc<Clock>,
    faults: FaultBoard,
    /// By rank in the group: the rank in the world, which is what `faults` goes by.
    ranks: Arc<[usize]>,
}

/// What is left of the time that a collective has.
#[derive(Debug)]
struct Clock {
    allowance: Cell<Allowance>,
    /// How long the peer that has left is still waited for.
    farewell: Cell<Option<Allowance>>,
}

/// Why a wait ended without what it waited for.
#[derive(Clone, Debug)]
pub enum Interrupt {
    /// The deadline passed.
    TimedOut,
    /// A peer failed.
    Fault(Fault),
}

impl Watch {
    /// A watch over a group that ends `limit` from now, or as soon as `faults` knows of a failed
    /// rank. `ranks` has the number in the world of every rank of the group.
    pub fn new(limit: Duration, faults: FaultBoard, ranks: Arc<[usize]>) -> Self {
        let clock = Clock {
            allowance: Cell::new(Allowance::of(limit)),
            farewell: Cell::new(None),
        };
        Self {
            clock: Rc::new(clock),
            faults,
            ranks,
        }
    }

    /// The same watch, with the same time left, over some of the ranks, which count from 0 among themselves.
    pub(crate) fn among(&self, ranks: &[usize]) -> Self {
        let in_world = |rank: &usize| self.ranks.get(*rank).copied().unwrap_or(*rank);
        Self {
            clock: self.clock.clone(),
            faults: self.faults.clone(),
            ranks: ranks.iter().map(in_world).collect(),
        }
    }

    /// How long to sleep at most before asking again, while waiting for `peer`.
    ///
    /// # Errors
    /// When the wait is over: a rank failed, `peer` left, or the deadline passed.
    pub fn slice(&self, peer: usize) -> Result<Duration, Interrupt> {
        self.slice_at(Instant::now(), peer)
    }

    fn slice_at(&self, now: Instant, peer: usize) -> Result<Duration, Interrupt> {
        let mut allowance = self.clock.allowance.get();
        let left = allowance.left(now);
        self.clock.allowance.set(allowance);
        if let Some(fault) = self.faults.get() {
            return Err(Interrupt::Fault(fault));
        }
        let peer = self.ranks.get(peer).copied().unwrap_or(peer);
        if self.faults.left(peer) {
            let farewell = self.clock.farewell.get();
            let mut farewell = farewell.unwrap_or_else(|| Allowance::at(now, FAREWELL));
            let is_over = farewell.left(now).is_zero();
            self.clock.farewell.set(Some(farewell));
            if is_over {
                let reason = "it finished and left the group while others still waited for it";
                return Err(Interrupt::Fault(Fault {
                    rank: Some(peer),
                    reason: reason.into(),
                }));
            }
        }
        if left.is_zero() {
            return Err(Interrupt::TimedOut);
        }
        Ok(left.min(SLICE))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_in_which_the_process_was_stopped_does_not_count() {
        let limit = Duration::from_secs(1);
        let watch = Watch::new(limit, FaultBoard::new(2), Arc::new([0, 1]));
        let begin = Instant::now();
        let stopped = Duration::from_secs(3600);
        assert!(watch.slice_at(begin + limit / 2, 1).is_ok());
        assert!(watch.slice_at(begin + limit / 2 + stopped, 1).is_ok());
        let late = watch.slice_at(begin + 2 * limit + stopped, 1);
        assert!(matches!(late, Err(Interrupt::TimedOut)), "{late:?}");
    }

    #[test]
    fn a_part_of_the_ranks_has_no_time_of_its_own() {
        let limit = Duration::from_secs(1);
        let watch = Watch::new(limit, FaultBoard::new(8), Arc::new([1, 3, 5, 7]));
        let part = watch.among(&[3, 1]);
        assert_eq!(part.ranks[..], [7, 3]);
        let begin = Instant::now();
        assert!(part.slice_at(begin + limit / 2, 1).is_ok());
        let late = part.slice_at(begin + 2 * limit, 1);
        assert!(matches!(late, Err(Interrupt::TimedOut)), "{late:?}");
        let late = watch.slice_at(begin + 2 * limit, 1);
        assert!(matches!(late, Err(Interrupt::TimedOut)), "{late:?}");
    }
}
