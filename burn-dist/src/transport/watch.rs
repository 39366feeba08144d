//! How long a rank may wait, and what else ends the wait.
//!
//! Every wait of every transport goes through a [`Watch`], so that a dead or silent peer becomes an
//! error within the timeout.

use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::deadline::Allowance;
use crate::wire::{Fault, FaultBoard};

/// Longest sleep before a rank checks the fault board and the clock again.
const SLICE: Duration = Duration::from_millis(50);

/// The same if the wait has work to do meanwhile.
const BUSY_SLICE: Duration = Duration::from_millis(2);

/// How long bytes of a peer that has left may still be in flight while none arrive.
const FAREWELL: Duration = Duration::from_secs(1);

/// A deadline and the news of failed peers, for one collective.
pub struct Watch {
    clock: Rc<Clock>,
    faults: FaultBoard,
    /// The rank in the world, as in `faults`, by rank in the group.
    ranks: Arc<[usize]>,
    meanwhile: Option<Meanwhile>,
}

/// Decides at the end of a wait whether it may go on.
#[derive(Clone)]
pub(crate) struct Appeal {
    /// Number of the collective.
    pub sequence: u64,
    /// Largest extra time.
    pub most: Duration,
    /// Whether all ranks that have not reached this collective are late for a good reason.
    pub judge: Arc<dyn Fn(u64) -> bool + Send + Sync>,
}

/// Work that a waiter must do repeatedly.
pub(crate) type Meanwhile = Rc<dyn Fn()>;

/// Remaining time of a collective.
struct Clock {
    allowance: Cell<Allowance>,
    /// The initial time, and the extra time.
    limit: Duration,
    added: Cell<Duration>,
    appeal: Option<Appeal>,
    /// A peer that has left, and how long to wait for it still.
    farewell: Cell<Option<(usize, Allowance)>>,
}

/// The reason why a wait ended without success.
#[derive(Clone, Debug)]
pub enum Interrupt {
    /// The deadline passed.
    TimedOut,
    /// A peer failed.
    Fault(Fault),
}

impl Watch {
    /// A watch over a group. It ends `limit` from now, or as soon as `faults` has a failed rank.
    ///
    /// `ranks` has the number in the world of every rank of the group.
    pub fn new(limit: Duration, faults: FaultBoard, ranks: Arc<[usize]>) -> Self {
        let clock = Clock {
            allowance: Cell::new(Allowance::of(limit)),
            limit,
            added: Cell::new(Duration::ZERO),
            appeal: None,
            farewell: Cell::new(None),
        };
        Self {
            clock: Rc::new(clock),
            faults,
            ranks,
            meanwhile: None,
        }
    }

    /// The watch with an appeal at the end of its time. No other watch may have been derived from
    /// it yet.
    pub(crate) fn appealing(mut self, appeal: Appeal) -> Self {
        if let Some(clock) = Rc::get_mut(&mut self.clock) {
            clock.appeal = Some(appeal);
        }
        self
    }

    /// Timeout of the collective, including extra time for ranks that are late for a good reason.
    pub(crate) fn limit(&self) -> Duration {
        self.clock.limit.saturating_add(self.clock.added.get())
    }

    /// The watch with the same remaining time for some of the ranks, which count from 0 among
    /// themselves.
    pub(crate) fn among(&self, ranks: &[usize]) -> Self {
        let in_world = |rank: &usize| self.ranks.get(*rank).copied().unwrap_or(*rank);
        Self {
            clock: self.clock.clone(),
            faults: self.faults.clone(),
            ranks: ranks.iter().map(in_world).collect(),
            meanwhile: self.meanwhile.clone(),
        }
    }

    /// The watch with work to do in every wait.
    pub(crate) fn doing(&self, meanwhile: Option<Meanwhile>) -> Self {
        Self {
            clock: self.clock.clone(),
            faults: self.faults.clone(),
            ranks: self.ranks.clone(),
            meanwhile,
        }
    }

    /// Longest sleep before the next check, while waiting for `peer`.
    ///
    /// # Errors
    /// Fails if the wait is over: a rank failed, `peer` left, or the deadline passed.
    pub fn slice(&self, peer: usize) -> Result<Duration, Interrupt> {
        self.slice_at(Instant::now(), peer)
    }

    /// Notes that bytes have moved: bytes sent by a peer before it left still arrive.
    pub fn moved(&self) {
        self.clock.farewell.set(None);
    }

    /// The extra time: the initial time again, if there is a good reason and not too much was
    /// added.
    fn add_time(&self) -> Duration {
        let Some(appeal) = &self.clock.appeal else {
            return Duration::ZERO;
        };
        let added = self.clock.added.get();
        let more = self.clock.limit.min(appeal.most.saturating_sub(added));
        if more.is_zero() || !(appeal.judge)(appeal.sequence) {
            return Duration::ZERO;
        }
        self.clock.added.set(added + more);
        // The question took time too.
        self.clock.allowance.set(Allowance::of(more));
        more
    }

    fn slice_at(&self, now: Instant, peer: usize) -> Result<Duration, Interrupt> {
        let mut allowance = self.clock.allowance.get();
        let mut left = allowance.left(now);
        self.clock.allowance.set(allowance);
        if let Some(fault) = self.faults.get() {
            return Err(Interrupt::Fault(fault));
        }
        let peer = self.ranks.get(peer).copied().unwrap_or(peer);
        if let Some(fault) = self.faults.left_behind_by(peer) {
            let begun = self.clock.farewell.get();
            let begun = begun.filter(|(whose, _)| *whose == peer);
            let mut farewell = begun.map_or_else(|| Allowance::at(now, FAREWELL), |begun| begun.1);
            let is_over = farewell.left(now).is_zero();
            self.clock.farewell.set(Some((peer, farewell)));
            if is_over {
                return Err(Interrupt::Fault(fault));
            }
        }
        if left.is_zero() {
            left = self.add_time();
        }
        if left.is_zero() {
            return Err(Interrupt::TimedOut);
        }
        match &self.meanwhile {
            Some(meanwhile) => {
                meanwhile();
                Ok(left.min(BUSY_SLICE))
            }
            None => Ok(left.min(SLICE)),
        }
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
    fn who_is_late_for_a_good_reason_gets_more_time_but_not_for_ever() {
        let limit = Duration::from_secs(1);
        for (good, expected) in [(true, 2.5), (false, 1.0)] {
            let watch = Watch::new(limit, FaultBoard::new(2), Arc::new([0, 1]));
            let watch = watch.appealing(Appeal {
                sequence: 7,
                most: limit * 3 / 2,
                judge: Arc::new(move |sequence| good && sequence == 7),
            });
            let mut late = Instant::now();
            let mut asked = 0;
            loop {
                late += limit * 2;
                asked += 1;
                match watch.slice_at(late, 1) {
                    Ok(_) => assert!(asked < 10),
                    Err(Interrupt::TimedOut) => break,
                    Err(other) => panic!("{other:?}"),
                }
            }
            assert_eq!(watch.limit().as_secs_f64(), expected);
        }
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

    #[test]
    fn each_peer_that_leaves_is_waited_for_a_while() {
        let faults = FaultBoard::new(3);
        faults.record_left(1);
        faults.record_left(2);
        let watch = Watch::new(Duration::from_secs(60), faults, Arc::new([0, 1, 2]));
        let begin = Instant::now();
        assert!(watch.slice_at(begin, 1).is_ok());
        let late = begin + 2 * FAREWELL;
        assert!(watch.slice_at(late, 2).is_ok());
        let over = watch.slice_at(late + 2 * FAREWELL, 2);
        assert!(matches!(over, Err(Interrupt::Fault(_))), "{over:?}");
    }

    #[test]
    fn what_a_peer_sent_before_it_left_may_take_its_time() {
        let faults = FaultBoard::new(2);
        faults.record_left(1);
        let watch = Watch::new(Duration::from_secs(60), faults, Arc::new([0, 1]));
        let mut now = Instant::now();
        for _ in 0..5 {
            assert!(watch.slice_at(now, 1).is_ok());
            now += 2 * FAREWELL;
            watch.moved();
        }
        assert!(watch.slice_at(now, 1).is_ok());
        let over = watch.slice_at(now + 2 * FAREWELL, 1);
        assert!(matches!(over, Err(Interrupt::Fault(_))), "{over:?}");
    }

    #[test]
    fn what_is_to_be_done_meanwhile_is_done_often() {
        let done = Rc::new(Cell::new(0));
        let count = done.clone();
        let watch = Watch::new(
            Duration::from_secs(60),
            FaultBoard::new(2),
            Arc::new([0, 1]),
        );
        let watch = watch.doing(Some(Rc::new(move || count.set(count.get() + 1))));
        for _ in 0..3 {
            assert!(watch.slice(1).unwrap() <= BUSY_SLICE);
        }
        assert_eq!(done.get(), 3);
    }
}
