//! Raises the limit of open files for the connections and pipes of many ranks. The default limit is
//! often 1024.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Files that a process may need for other purposes at the same time.
const OTHERS: u64 = 64;

/// The limit of open files is too low.
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "{ranks} ranks need {needed} open files on this host, but the limit is {allowed}. Raise it \
     (`ulimit -Hn`, `nofile` in limits.conf, LimitNOFILE of a service), or start fewer ranks"
)]
pub struct TooFewOpenFiles {
    /// Number of ranks.
    pub ranks: usize,
    /// Number of open files that this process needs.
    pub needed: u64,
    /// Largest number that it may have.
    pub allowed: u64,
}

crate::debug_is_display!(TooFewOpenFiles);

/// Lets this process open `each` more files for each of `ranks` ranks. The limit is raised only if
/// necessary, since child processes inherit it.
///
/// # Errors
/// Fails if the system does not allow that many.
pub(crate) fn make_room(ranks: usize, each: usize) -> Result<(), TooFewOpenFiles> {
    let needed = in_use() + OTHERS + (ranks as u64).saturating_mul(each as u64);
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    // `None` means no limit.
    if current.is_none_or(|current| current >= needed) {
        return Ok(());
    }
    if let Some(allowed) = maximum.filter(|maximum| *maximum < needed) {
        return Err(TooFewOpenFiles {
            ranks,
            needed,
            allowed,
        });
    }
    let raised = Rlimit {
        current: Some(needed),
        maximum,
    };
    setrlimit(Resource::Nofile, raised).map_err(|_| TooFewOpenFiles {
        ranks,
        needed,
        allowed: current.unwrap_or_default(),
    })
}

/// Number of files that this process has open, if the system tells.
fn in_use() -> u64 {
    std::fs::read_dir("/proc/self/fd").map_or(0, |files| files.count() as u64)
}
