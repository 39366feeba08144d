//! What a rank says to those that wait for it: that it is late because of files.
//!
//! It stands in the number that every rank tells of its progress, so ranks that wait find it out
//! when their time is over.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use super::members::BUSY;

/// Work of this length makes a rank late: until its next collective it counts as busy.
const LONG: Duration = Duration::from_millis(200);

/// For work that the other ranks wait for longer than the time-out of their collectives: reading or
/// writing files, on a disk that may be slow. Clones are of the same rank.
///
/// Ranks whose time-out passes ask for it, and go on waiting, up to
/// [`first_timeout`](super::GroupOptions::first_timeout) more. It keeps no rank in the run, and
/// costs a lock.
#[derive(Clone, Debug, Default)]
pub struct Busy {
    progress: Arc<AtomicU64>,
    /// How many pieces of work are being done.
    pieces: Arc<AtomicUsize>,
    /// Since when there were some. Locked while their number changes.
    since: Arc<Mutex<Option<Instant>>>,
}

impl Busy {
    pub(super) fn new(progress: Arc<AtomicU64>) -> Self {
        Self {
            progress,
            ..Self::default()
        }
    }

    /// Does `work`.
    pub fn during<R>(&self, work: impl FnOnce() -> R) -> R {
        let _piece = Piece::begin(self);
        work()
    }

    /// Notes that this rank has come to a collective.
    pub(super) fn advance(&self, progress: u64) {
        self.progress.store(progress, Ordering::SeqCst);
        // After that: a piece that begins meanwhile sets the bit itself.
        if self.pieces.load(Ordering::SeqCst) > 0 {
            self.progress.fetch_or(BUSY, Ordering::SeqCst);
        }
    }
}

/// A piece of work, which may panic.
struct Piece<'b>(&'b Busy);

impl<'b> Piece<'b> {
    fn begin(busy: &'b Busy) -> Self {
        let mut since = busy.since.lock().unwrap_or_else(PoisonError::into_inner);
        since.get_or_insert_with(Instant::now);
        busy.pieces.fetch_add(1, Ordering::SeqCst);
        busy.progress.fetch_or(BUSY, Ordering::SeqCst);
        drop(since);
        Self(busy)
    }
}

impl Drop for Piece<'_> {
    fn drop(&mut self) {
        let mut since = self.0.since.lock().unwrap_or_else(PoisonError::into_inner);
        if self.0.pieces.fetch_sub(1, Ordering::SeqCst) > 1 {
            return;
        }
        let took = since.take().map_or(Duration::ZERO, |since| since.elapsed());
        if took < LONG {
            self.0.progress.fetch_and(!BUSY, Ordering::SeqCst);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rank_is_busy_until_the_last_piece_is_done() {
        let busy = Busy::default();
        let now = || busy.progress.load(Ordering::SeqCst);
        busy.during(|| {
            busy.clone().during(|| assert_eq!(now(), BUSY));
            busy.advance(7);
            assert_eq!(now(), BUSY | 7);
        });
        assert_eq!(now(), 7);
        let panicked = std::panic::catch_unwind(|| busy.during(|| panic!("on purpose")));
        // Which may take long enough for the rank to be late.
        assert!(panicked.is_err() && busy.pieces.load(Ordering::SeqCst) == 0);
    }

    #[test]
    fn a_rank_that_is_late_because_of_it_is_busy_until_its_next_collective() {
        let busy = Busy::default();
        busy.during(|| std::thread::sleep(LONG));
        assert_eq!(busy.progress.load(Ordering::SeqCst), BUSY);
        busy.advance(8);
        assert_eq!(busy.progress.load(Ordering::SeqCst), 8);
    }
}
