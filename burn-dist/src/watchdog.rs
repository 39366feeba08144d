//! Ends this process if nothing else would: its run has failed while it is busy with work that does
//! not end, or a call without a timeout takes too long.
//!
//! One thread watches for both. It ends the process by `_exit`, because a normal exit may hang for
//! the same reason.

use std::io::{self, Write};
use std::sync::mpsc::channel;
use std::thread;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

use crate::deadline::Allowance;
use crate::wire::FaultBoard;

/// Exit code of a process that the watchdog ends.
const FAILED: i32 = 1;

/// Time between two checks.
const LOOK: Duration = Duration::from_millis(200);

/// Longest delay for telling the reason.
pub(crate) const LAST_WORDS: Duration = Duration::from_secs(2);

/// How to end a process that goes on after its run has failed.
///
/// For [`GroupOptions::abort`](crate::group::GroupOptions::abort).
#[derive(Clone, Copy, Debug)]
pub struct Abort {
    /// Time from the failure to the end of the process, with exit code 1.
    pub after: Duration,
    /// Callback with the reason, on a thread of its own, for instance to flush logs.
    ///
    /// It has 2 s at most, or a quarter of `after` if that is less. The process ends whether it
    /// returns or not.
    pub tell: fn(&str),
}

impl Abort {
    /// Writes the reason to standard error, and ends the process `after` its run has failed.
    pub fn after(after: Duration) -> Self {
        Self { after, tell: say }
    }
}

/// Writes the reason to standard error.
pub(crate) fn say(reason: &str) {
    let _ = writeln!(io::stderr(), "error: {reason}");
}

/// The reason why the process ends now.
pub(crate) struct Verdict {
    pub reason: String,
    /// Callback with the reason.
    pub tell: fn(&str),
    /// Time that the callback may take.
    pub patience: Duration,
}

/// Returns a verdict when it is due.
pub(crate) type Look = Box<dyn FnMut(Instant) -> Option<Verdict> + Send>;

struct Watched {
    started: bool,
    next: u64,
    looks: Vec<(u64, Look)>,
}

static WATCHED: Mutex<Watched> = Mutex::new(Watched {
    started: false,
    next: 0,
    looks: Vec::new(),
});

static ADDED: Condvar = Condvar::new();

/// Starts the thread, unless it runs. Nothing else here can fail.
///
/// # Errors
/// Fails if the system refuses a thread.
pub(crate) fn start() -> io::Result<()> {
    let mut watched = WATCHED.lock();
    if !watched.started {
        thread::Builder::new()
            .name("watchdog".into())
            .spawn(keep_watch)?;
        watched.started = true;
    }
    Ok(())
}

fn keep_watch() {
    let mut watched = WATCHED.lock();
    loop {
        let now = Instant::now();
        let verdict = watched.looks.iter_mut().find_map(|(_, look)| look(now));
        if let Some(verdict) = verdict {
            drop(watched);
            end(verdict);
        }
        match watched.looks.is_empty() {
            true => ADDED.wait(&mut watched),
            false => drop(ADDED.wait_for(&mut watched, LOOK)),
        }
    }
}

fn end(verdict: Verdict) -> ! {
    let Verdict {
        reason,
        tell,
        patience,
    } = verdict;
    let (done, told) = channel();
    let speaking = thread::Builder::new().name("last-words".into());
    let speaking = speaking.spawn(move || {
        tell(&reason);
        let _ = done.send(());
    });
    if speaking.is_ok() {
        let _ = told.recv_timeout(patience);
    }
    signal_hook::low_level::exit(FAILED)
}

/// A watch that lasts until this is dropped.
#[derive(Debug)]
#[must_use]
pub(crate) struct Lookout(u64);

impl Lookout {
    /// Calls `look` periodically. The thread must be [started](start).
    pub(crate) fn new(look: Look) -> Self {
        let mut watched = WATCHED.lock();
        let number = watched.next;
        watched.next += 1;
        watched.looks.push((number, look));
        drop(watched);
        ADDED.notify_all();
        Self(number)
    }
}

impl Drop for Lookout {
    fn drop(&mut self) {
        WATCHED.lock().looks.retain(|(number, _)| *number != self.0);
    }
}

/// Ends the process some time after its run has failed. It watches as long as this lives, and for
/// good after a failure.
#[derive(Debug)]
pub(crate) struct Leash {
    watch: Option<Lookout>,
    faults: FaultBoard,
}

impl Leash {
    /// Watches `faults`. The thread must be [started](start).
    pub(crate) fn new(faults: FaultBoard, abort: Abort) -> Self {
        let Abort { after, tell } = abort;
        let patience = LAST_WORDS.min(after / 4);
        let board = faults.clone();
        let mut left: Option<Allowance> = None;
        let look = move |now| {
            let fault = board.get()?;
            let left = left.get_or_insert_with(|| Allowance::at(now, after - patience));
            left.left(now).is_zero().then(|| Verdict {
                reason: format!(
                    "this rank is still busy {} s after the run failed and is terminated: {fault}",
                    after.as_secs()
                ),
                tell,
                patience,
            })
        };
        Self {
            watch: Some(Lookout::new(Box::new(look))),
            faults,
        }
    }
}

impl Leash {
    /// Stops watching, also after a failure.
    pub(crate) fn release(mut self) {
        self.watch = None;
    }
}

impl Drop for Leash {
    fn drop(&mut self) {
        if self.faults.is_faulty() {
            // The remaining cleanup may hang too.
            std::mem::forget(self.watch.take());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Looks for this watch only: other tests of this process use the board too.
    fn is_watched(watch: &Lookout) -> bool {
        WATCHED
            .lock()
            .looks
            .iter()
            .any(|(number, _)| *number == watch.0)
    }

    #[test]
    fn what_is_done_in_time_is_forgotten() {
        start().unwrap();
        let watch = Lookout::new(Box::new(|_| None));
        assert!(is_watched(&watch));
        let number = watch.0;
        drop(watch);
        assert!(
            !WATCHED
                .lock()
                .looks
                .iter()
                .any(|(other, _)| *other == number)
        );
    }

    #[test]
    fn a_run_that_ended_well_is_watched_no_more_and_one_that_failed_is() {
        start().unwrap();
        for fails in [false, true] {
            let faults = FaultBoard::new(2);
            let abort = Abort::after(Duration::from_secs(3600));
            let leash = Leash::new(faults.clone(), abort);
            let number = leash.watch.as_ref().unwrap().0;
            if fails {
                faults.record(crate::wire::Fault {
                    rank: Some(1),
                    reason: "it failed".into(),
                });
            }
            drop(leash);
            let kept = WATCHED
                .lock()
                .looks
                .iter()
                .any(|(other, _)| *other == number);
            assert_eq!(kept, fails);
        }
    }
}
