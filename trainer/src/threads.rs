//! Makes the thread that trains one of the pool that computes, and gives the pool its size.
//!
//! Operations that begin on any other thread are handed to the pool: that thread sleeps while all the
//! others work, and every operation costs two threads' way to sleep and back.

use std::fs;
use std::thread::available_parallelism;

use rustix::thread::{CpuSet, sched_getaffinity};

/// The variable with the number of threads, as rayon reads it.
const VARIABLE: &str = "RAYON_NUM_THREADS";

/// The processors of the machine, as `0-7,16`.
const ONLINE: &str = "/sys/devices/system/cpu/online";

/// Makes the calling thread the first of rayon's pool. That gets as many threads as `RAYON_NUM_THREADS` says; else as
/// there are processors for this process, or, where that may use all of the machine's, its share of them among the
/// `ranks` of this node. Does nothing if the pool has been started.
///
/// With one thread there is nothing to gain, and work from other threads, such as those that load
/// data, would wait for one that never looks for it.
pub fn join_pool(ranks: usize) {
    let asked = std::env::var(VARIABLE).ok();
    let asked = asked
        .and_then(|text| text.parse().ok())
        .filter(|&threads| threads > 0);
    let threads = asked.unwrap_or_else(|| {
        let available = available_parallelism().map_or(1, usize::from);
        match is_bound() {
            true => available,
            false => (available / ranks.max(1)).max(1),
        }
    });
    let builder = rayon::ThreadPoolBuilder::new().num_threads(threads);
    let builder = match threads {
        1 => builder,
        _ => builder.use_current_thread(),
    };
    if let Err(error) = builder.build_global() {
        tracing::debug!("the pool of threads stays as it is: {error}");
    }
}

/// Whether this process may use a part of the machine's processors only: its launcher may have chosen it for this rank
/// alone.
fn is_bound() -> bool {
    let online = fs::read_to_string(ONLINE)
        .ok()
        .and_then(|list| count(&list));
    let own = sched_getaffinity(None)
        .ok()
        .map(|own: CpuSet| own.count() as usize);
    online.zip(own).is_some_and(|(online, own)| own < online)
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
