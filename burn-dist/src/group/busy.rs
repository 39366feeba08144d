//! Marks a rank as busy with files, so that the others wait longer for it.
//!
//! The mark is a bit of the progress number that every rank publishes. Waiting ranks read it when
//! their timeout ends.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use super::members::BUSY;

/// Work of this length makes a rank late: it counts as busy until its next collective.
const LONG: Duration = Duration::from_millis(200);

/// Marks file work that other ranks may wait for longer than their collectives' timeout: reads and
/// writes on a slow disk. Clones belong to the same rank.
///
/// A rank whose timeout has passed asks for the mark and, if it is set, waits up to
/// [`first_timeout`](super::GroupOptions::first_timeout) more. The mark does not keep a rank in the
/// run. Setting it costs a lock.
#[derive(Clone, Debug, Default)]
pub struct Busy {
    progress: Arc<AtomicU64>,
    /// Number of pieces of work in progress.
    pieces: Arc<AtomicUsize>,
    /// Start of the first piece in progress. Locked while `pieces` changes.
    since: Arc<Mutex<Option<Instant>>>,
}

impl Busy {
    pub(super) fn new(progress: Arc<AtomicU64>) -> Self {
        Self {
            progress,
            ..Self::default()
        }
    }

    /// Runs `work` while this rank is marked as busy.
    pub fn during<R>(&self, work: impl FnOnce() -> R) -> R {
        let _piece = Piece::begin(self);
        work()
    }

    /// Notes that this rank has reached a collective.
    pub(super) fn advance(&self, progress: u64) {
        self.progress.store(progress, Ordering::SeqCst);
        // After the store: a piece that begins in between sets the bit itself.
        if self.pieces.load(Ordering::SeqCst) > 0 {
            self.progress.fetch_or(BUSY, Ordering::SeqCst);
        }
    }
}

/// A piece of work in progress. Its drop also runs when the work panics.
struct Piece<'b>(&'b Busy);

impl<'b> Piece<'b> {
    fn begin(busy: &'b Busy) -> Self {
        let mut since = busy.since.lock();
        since.get_or_insert_with(Instant::now);
        busy.pieces.fetch_add(1, Ordering::SeqCst);
        busy.progress.fetch_or(BUSY, Ordering::SeqCst);
        drop(since);
        Self(busy)
    }
}

impl Drop for Piece<'_> {
    fn drop(&mut self) {
        let mut since = self.0.since.lock();
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
    use std::panic::{AssertUnwindSafe, catch_unwind};

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
        let work = AssertUnwindSafe(|| busy.during(|| panic!("on purpose")));
        let panicked = catch_unwind(work);
        // The panic may take long enough for the rank to be late.
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
