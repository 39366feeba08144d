//! The size of rayon's pool, and the training thread as one of its threads.
//!
//! An operation that begins on any other thread is handed to the pool. That thread then sleeps
//! while the pool works, and every operation costs two thread wake-ups.

use std::env;
use std::error::Error;
use std::fs;
use std::io;
use std::thread::available_parallelism;

use rayon::ThreadPoolBuilder;
use rustix::thread::{CpuSet, sched_getaffinity};

use crate::launch;
use crate::thread_limit::{self, NoThreads};
use crate::world::World;

/// The variable with rayon's number of threads.
const VARIABLE: &str = "RAYON_NUM_THREADS";

/// The CPUs of the machine, as `0-7,16`.
const ONLINE: &str = "/sys/devices/system/cpu/online";

/// Threads of a rank beside the pool: signals, store, collectives, checkpoints and data loading.
const OTHERS: usize = 16;

/// A size of rayon's global pool.
///
/// ```no_run
/// use burn_dist::thread_pool::PoolSize;
/// use burn_dist::world::World;
///
/// let world = World::from_env()?;
/// let size = PoolSize::of_rank(&world);
/// if let Some(warning) = size.warning() {
///     eprintln!("warning: {warning}");
/// }
/// size.join()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PoolSize {
    threads: usize,
    warning: Option<String>,
}

impl PoolSize {
    /// The size for the rank in `world`: `RAYON_NUM_THREADS`, at most one thread per CPU of this
    /// process; if it is not set, the rank's share of the CPUs among the ranks of its node.
    pub fn of_rank(world: &World) -> Self {
        // If the local size is only assumed, the other ranks may be on other machines.
        let ranks = match world.assumes_local_size() {
            true => 1,
            false => world.local_size(),
        };
        Self::or_else(|| {
            let of_launcher = launch::cpus_of_launcher(world);
            Cpus::of_this_process().share(ranks, of_launcher)
        })
    }

    /// The size for a process that is no rank: `RAYON_NUM_THREADS`, at most one thread per CPU; all
    /// CPUs if it is not set.
    pub fn of_process() -> Self {
        Self::or_else(|| Cpus::of_this_process().share(1, None))
    }

    fn or_else(share: impl FnOnce() -> usize) -> Self {
        let text = env::var(VARIABLE).unwrap_or_default();
        let (threads, warning) = bounded(&text, available());
        Self {
            threads: threads.unwrap_or_else(share),
            warning,
        }
    }

    /// Number of threads of the pool.
    pub fn threads(&self) -> usize {
        self.threads
    }

    /// The reason why `RAYON_NUM_THREADS` does not count as it stands.
    pub fn warning(&self) -> Option<&str> {
        self.warning.as_deref()
    }

    /// Starts rayon's global pool, with the calling thread as its first. Has no effect if the pool
    /// has been started.
    ///
    /// The calling thread does not join a pool of one thread: it would gain nothing, and work from
    /// other threads, such as data loading, would wait for a thread that never looks for it. Nor
    /// does it join if it is in another pool.
    ///
    /// Tasks in the pool must not wait for the calling thread, as it may run them while it waits.
    ///
    /// # Errors
    ///
    /// The system does not allow the threads of a rank.
    pub fn join(&self) -> io::Result<()> {
        thread_limit::make_room(self.threads + OTHERS)?;
        let builder = ThreadPoolBuilder::new().num_threads(self.threads);
        built(
            match self.threads > 1 && rayon::current_thread_index().is_none() {
                true => builder.use_current_thread(),
                false => builder,
            },
        )
    }

    /// Starts rayon's global pool without the calling thread. Has no effect if it has been started.
    ///
    /// # Errors
    ///
    /// The system does not allow the threads.
    pub fn start(&self) -> io::Result<()> {
        built(ThreadPoolBuilder::new().num_threads(self.threads))
    }
}

fn built(builder: ThreadPoolBuilder) -> io::Result<()> {
    let Err(error) = builder.build_global() else {
        return Ok(());
    };
    match (NoThreads::behind(&error), error.source()) {
        (Some(limit), _) => Err(limit.into()),
        (None, Some(_)) => Err(io::Error::other(error)),
        // The pool exists already.
        (None, None) => Ok(()),
    }
}

/// Number of threads that this process can keep busy.
fn available() -> usize {
    available_parallelism().map_or(1, usize::from)
}

/// Number of threads that the variable requests on `cpus` CPUs, and a warning.
fn bounded(text: &str, cpus: usize) -> (Option<usize>, Option<String>) {
    match text.trim().parse::<usize>() {
        // As in rayon: 0 counts as not set.
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

/// CPUs for this process.
struct Cpus {
    /// CPUs in its affinity mask.
    own: usize,
    /// CPUs of the machine.
    online: usize,
    /// CPUs that it can keep busy: a container may limit CPU time.
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

    /// The share of one of `ranks`.
    ///
    /// All ranks share the launcher's CPUs and a limit of CPU time. If the launcher's CPUs are
    /// unknown, a process that is bound to part of the machine has that part for itself.
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

/// Number of CPUs in a list like `0-7,16`.
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
        // No process is bound.
        assert_eq!(share((8, 8, 8), 4, Some(8)), 2);
        assert_eq!(share((8, 8, 8), 3, None), 2);
        // All are in a set of two of eight CPUs, as in a container.
        assert_eq!(share((2, 8, 2), 4, Some(2)), 1);
        assert_eq!(share((4, 8, 4), 2, Some(4)), 2);
        // Each is bound to its own two, by a launcher that may use all.
        assert_eq!(share((2, 8, 2), 4, Some(8)), 2);
        assert_eq!(share((2, 64, 2), 4, Some(64)), 2);
        // Two on each half of a machine.
        assert_eq!(share((8, 16, 8), 4, Some(16)), 4);
        // Bound by an unknown launcher.
        assert_eq!(share((2, 8, 2), 4, None), 2);
        // A limit of CPU time is shared by all.
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
