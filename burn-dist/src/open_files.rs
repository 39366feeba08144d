//! Room for the connections and pipes of many ranks: systems let a process open few files, often
//! 1024, unless it asks for more.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Files that a process may come to need for other things at the same time.
const OTHERS: u64 = 64;

/// The system lets this process open too few files.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{ranks} ranks take {needed} open files on this host and the system allows {allowed}: raise the limit, \
     `ulimit -Hn` (`nofile` in limits.conf, LimitNOFILE of a service), or start fewer ranks"
)]
pub struct TooFewOpenFiles {
    /// How many ranks there are.
    pub ranks: usize,
    /// How many open files this process comes to have.
    pub needed: u64,
    /// How many it may have at most.
    pub allowed: u64,
}

/// Lets this process open `each` files for each of `ranks` ranks beside those that it has. The
/// limit is raised only where it has to be, since processes that it starts inherit it.
///
/// # Errors
/// If the system does not allow that many.
pub(crate) fn make_room(ranks: usize, each: usize) -> Result<(), TooFewOpenFiles> {
    let needed = in_use() + OTHERS + (ranks as u64).saturating_mul(each as u64);
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    // None means that there is no limit.
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

/// Files that this process has open, where the system tells.
fn in_use() -> u64 {
    std::fs::read_dir("/proc/self/fd").map_or(0, |files| files.count() as u64)
}
