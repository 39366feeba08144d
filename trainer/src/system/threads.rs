//! Makes the thread that trains one of the pool that computes, and gives the pool its size.
//!
//! Operations that begin on any other thread are handed to the pool: that thread sleeps while all
//! the others work, and every operation costs two threads' way to sleep and back.

use std::env;
use std::error::Error;
use std::fs;
use std::io;
use std::thread::available_parallelism;

use burn_dist::thread_limit::{self, NoThreads};
use rustix::thread::{CpuSet, sched_getaffinity};

use crate::system::output::complain;

/// The variable with the number of threads, as rayon reads it.
const VARIABLE: &str = "RAYON_NUM_THREADS";

/// The CPUs of the machine, as `0-7,16`.
const ONLINE: &str = "/sys/devices/system/cpu/online";

/// Threads that a rank has beside the pool: for signals, the store, collectives, checkpoints and
/// loading.
const OTHERS: usize = 16;

/// Makes the calling thread the first of rayon's pool, for one of `ranks` of this node that nobody
/// has started; see [`start_pool`]. A pool that cannot be started is left to rayon.
pub fn join_pool(ranks: usize) {
    if let Err(error) = start_pool(ranks, None, false) {
        tracing::debug!("cannot resize the thread pool: {error}");
    }
}

/// Makes the calling thread the first of rayon's pool. That gets as many threads as
/// `RAYON_NUM_THREADS` says, but not more than there are CPUs for this process, which one that
/// `warns` says; else its share of these CPUs among the `ranks` of this node, whose launcher may
/// use `of_launcher` of them. Does nothing if the pool has been started.
///
/// With one thread there is nothing to gain, and work from other threads, such as those that load
/// data, would wait for one that never looks for it.
///
/// # Errors
/// If the system does not let this process start as many threads as a rank takes.
pub fn start_pool(ranks: usize, of_launcher: Option<usize>, warns: bool) -> io::Result<()> {
    let threads = match asked(warns) {
        Some(threads) => threads,
        None => Cpus::of_this_process().share(ranks, of_launcher),
    };
    thread_limit::make_room(threads + OTHERS)?;
    let builder = rayon::ThreadPoolBuilder::new().num_threads(threads);
    let builder = match threads {
        1 => builder,
        _ => builder.use_current_thread(),
    };
    built(builder)
}

/// Keeps rayon's pool within the CPUs of this process where `RAYON_NUM_THREADS` asks for more. Does
/// nothing if the pool has been started.
///
/// # Errors
/// If the system does not let this process start as many threads.
pub fn bound_pool() -> io::Result<()> {
    let Ok(text) = env::var(VARIABLE) else {
        return Ok(());
    };
    let (threads, Some(warning)) = bounded(&text, available()) else {
        return Ok(());
    };
    complain(&format!("warning: {warning}"));
    match threads {
        Some(threads) => built(rayon::ThreadPoolBuilder::new().num_threads(threads)),
        None => Ok(()),
    }
}

fn built(builder: rayon::ThreadPoolBuilder) -> io::Result<()> {
    let Err(error) = builder.build_global() else {
        return Ok(());
    };
    match (NoThreads::behind(&error), error.source()) {
        (Some(limit), _) => Err(limit.into()),
        (None, Some(_)) => Err(io::Error::other(error)),
        // There is one.
        (None, None) => Ok(()),
    }
}

/// How many threads this process can keep busy.
fn available() -> usize {
    available_parallelism().map_or(1, usize::from)
}

/// How many threads `RAYON_NUM_THREADS` asks for, of those that this process has CPUs for.
fn asked(warns: bool) -> Option<usize> {
    let text = env::var(VARIABLE).ok()?;
    let (threads, warning) = bounded(&text, available());
    if let Some(warning) = warning.filter(|_| warns) {
        complain(&format!("warning: {warning}"));
    }
    threads
}

/// How many threads the variable means on so many CPUs, and what is wrong with it.
fn bounded(text: &str, cpus: usize) -> (Option<usize>, Option<String>) {
    match text.trim().parse::<usize>() {
        // As rayon takes it: as if it were not set.
        Ok(0) => (None, None),
        Ok(threads) if threads <= cpus => (Some(threads), None),
        Ok(threads) => {
            let warning = format!(
                "{VARIABLE}={threads}, but this process may use {cpus} {}; computing on {cpus}",
                match cpus {
                    1 => "CPU",
                    _ => "CPUs",
                }
            );
            (Some(cpus), Some(warning))
        }
        Err(_) if text.trim().is_empty() => (None, None),
        Err(_) => (
            None,
            Some(format!(
                "{VARIABLE}={text} is not a number of threads; ignored"
            )),
        ),
    }
}

/// What this process may compute on.
struct Cpus {
    /// CPUs that it may use.
    own: usize,
    /// Those of the machine.
    online: usize,
    /// As many as it can keep busy: a container may have a limit of CPU time.
    available: usize,
}

impl Cpus {
    fn of_this_process() -> Self {
        let available = available();
        let own = sched_getaffinity(None)
            .ok()
            .map(|own: CpuSet| own.count() as usize);
        let own = own.unwrap_or(available);
        let online = fs::read_to_string(ONLINE)
            .ok()
            .and_then(|list| count(&list));
        Self {
            own,
            online: online.unwrap_or(own),
            available,
        }
    }

    /// The share of one of `ranks`. Their launcher's CPUs are for all of them, and so is a limit of
    /// CPU time. Where it is not known, those of a process that may not use the whole machine are
    /// taken to be for it alone.
    fn share(&self, ranks: usize, of_launcher: Option<usize>) -> usize {
        let limit = (self.available < self.own).then_some(self.available);
        let is_bound = self.own < self.online;
        let for_all = match of_launcher {
            None if is_bound && limit.is_none() => return self.available,
            None => self.own,
            Some(of_launcher) => of_launcher,
        };
        let for_all = limit.map_or(for_all, |limit| limit.min(for_all));
        (for_all / ranks.max(1)).clamp(1, self.available.max(1))
    }
}

/// How many numbers a list as `0-7,16` has.
fn count(list: &str) -> Option<usize> {
    list.trim().split(',').try_fold(0usize, |sum, part| {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last): (usize, usize) = (first.parse().ok()?, last.parse().ok()?);
        sum.checked_add(last.checked_sub(first)?.checked_add(1)?)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_share_the_cpus_of_their_launcher() {
        let share = |(own, online, available), ranks, of_launcher| {
            let cpus = Cpus {
                own,
                online,
                available,
            };
            cpus.share(ranks, of_launcher)
        };
        // Nobody is bound.
        assert_eq!(share((8, 8, 8), 4, Some(8)), 2);
        assert_eq!(share((8, 8, 8), 3, None), 2);
        // All in a set of two of eight CPUs, as in a container.
        assert_eq!(share((2, 8, 2), 4, Some(2)), 1);
        assert_eq!(share((4, 8, 4), 2, Some(4)), 2);
        // Each bound to its own two, by a launcher that may use all.
        assert_eq!(share((2, 8, 2), 4, Some(8)), 2);
        assert_eq!(share((2, 64, 2), 4, Some(64)), 2);
        // Two on each half of a machine.
        assert_eq!(share((8, 16, 8), 4, Some(16)), 4);
        // Bound, nobody knows by whom.
        assert_eq!(share((2, 8, 2), 4, None), 2);
        // A limit of CPU time is one for all of them.
        assert_eq!(share((64, 64, 2), 2, Some(64)), 1);
        assert_eq!(share((64, 64, 8), 2, None), 4);
        assert_eq!(share((1, 1, 1), 0, None), 1);
    }

    #[test]
    fn threads_are_bounded_by_the_cpus() {
        assert_eq!(bounded("2", 4), (Some(2), None));
        assert_eq!(bounded(" 4 ", 4), (Some(4), None));
        for nothing in ["0", "", " "] {
            assert_eq!(bounded(nothing, 4), (None, None), "{nothing:?}");
        }
        let (threads, warning) = bounded("8000", 4);
        assert_eq!(threads, Some(4));
        let warning = warning.unwrap();
        assert!(warning.contains("RAYON_NUM_THREADS=8000"), "{warning}");
        assert!(warning.contains("4 CPUs"), "{warning}");
        for odd in ["all", "-1", "99999999999999999999999"] {
            let (threads, warning) = bounded(odd, 4);
            assert_eq!(threads, None);
            assert!(warning.unwrap().contains(odd));
        }
    }

    #[test]
    fn processors_are_counted() {
        let counts = [("0\n", 1), ("0-7\n", 8), ("0-3,8-11,15\n", 9)];
        for (list, expected) in counts {
            assert_eq!(count(list), Some(expected), "{list}");
        }
        for list in ["", "all", "3-1", "0-", "0-18446744073709551615"] {
            assert_eq!(count(list), None, "{list}");
        }
    }
}
