//! Keeps the threads of a pool looking for work between operations.
//!
//! A step is hundreds of operations a few microseconds apart. A thread of rayon sleeps after
//! about that long, and waking it costs as much again. So an operation has the other threads of
//! its pool look for work until none has begun for a while.

use std::cell::OnceCell;
use std::hint::spin_loop;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use rayon::Yield;

/// How long a thread looks for work, and waits for another one, before it sleeps.
const PATIENCE: Duration = Duration::from_micros(200);

/// Pauses between two looks.
const PAUSES: usize = 16;

/// Messages to itself that a thread leaves unread. It usually reads them while it waits.
const UNREAD: usize = 16;

/// The other threads of the pool, as the thread that begins operations sees them.
#[derive(Debug, Default)]
struct Team {
    /// Threads that look for work.
    looking: AtomicUsize,
    /// Operations so far.
    operations: AtomicUsize,
    /// Messages that the thread sent to itself, as a broadcast reaches it too.
    unread: AtomicUsize,
}

thread_local! {
    static TEAM: OnceCell<Arc<Team>> = const { OnceCell::new() };
}

/// Has the other threads of this thread's pool look for work. Does nothing outside a pool.
pub(crate) fn wake() {
    let Some(own) = rayon::current_thread_index() else {
        return;
    };
    TEAM.with(|team| {
        let team = team.get_or_init(Arc::default);
        team.operations.fetch_add(1, Ordering::Relaxed);
        if team.looking.load(Ordering::Relaxed) > 0 {
            return;
        }
        let others = rayon::current_num_threads() - 1;
        team.looking.store(others, Ordering::Relaxed);
        if team.unread.fetch_add(1, Ordering::Relaxed) >= UNREAD {
            rayon::yield_local();
        }
        let team = Arc::clone(team);
        rayon::spawn_broadcast(move |context| match context.index() == own {
            true => {
                team.unread.fetch_sub(1, Ordering::Relaxed);
            }
            false => {
                team.look();
                team.looking.fetch_sub(1, Ordering::Relaxed);
            }
        });
    });
}

impl Team {
    fn look(&self) {
        let mut known = self.operations.load(Ordering::Relaxed);
        let mut patience = Patience::default();
        loop {
            let worked = rayon::yield_now() == Some(Yield::Executed);
            let operations = self.operations.load(Ordering::Relaxed);
            if worked || operations != known {
                known = operations;
                patience = Patience::default();
            } else if !patience.lasts() {
                return;
            }
        }
    }
}

/// A wait that ends, and lets other programs run meanwhile.
#[derive(Default)]
pub(crate) struct Patience {
    since: Option<Instant>,
}

impl Patience {
    /// Pauses, and returns whether to go on waiting.
    pub(crate) fn lasts(&mut self) -> bool {
        for _ in 0..PAUSES {
            spin_loop();
        }
        let since = *self.since.get_or_insert_with(Instant::now);
        thread::yield_now();
        since.elapsed() < PATIENCE
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn looking() -> usize {
        let of = |team: &OnceCell<Arc<Team>>| team.get().map(Arc::clone);
        let team = TEAM.with(of).expect("an operation has begun");
        team.looking.load(Ordering::Relaxed)
    }

    #[test]
    fn threads_look_for_work_until_no_operation_begins() {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(3).build();
        pool.expect("a pool").install(|| {
            let end = Instant::now() + Duration::from_secs(20);
            for _ in 0..3 {
                wake();
                assert_eq!(looking(), 2);
                // This thread only sends messages to itself here.
                while looking() > 0 {
                    assert!(
                        Instant::now() < end,
                        "a thread never stops to look for work"
                    );
                    thread::sleep(Duration::from_millis(1));
                }
            }
        });
    }

    #[test]
    fn messages_to_itself_do_not_pile_up() {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(2).build();
        pool.expect("a pool").install(|| {
            for _ in 0..10 * UNREAD {
                wake();
                while looking() > 0 {
                    thread::yield_now();
                }
            }
            let unread =
                TEAM.with(|team| team.get().map(|team| team.unread.load(Ordering::Relaxed)));
            assert!(unread.expect("a team") <= UNREAD + 1);
        });
    }

    #[test]
    fn outside_a_pool_nobody_is_woken() {
        wake();
        assert!(TEAM.with(|team| team.get().is_none()));
    }
}
