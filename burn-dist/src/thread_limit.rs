//! Checks for free threads and processes, and explains a failed start.
//!
//! Users, containers and jobs have a limit on both together. The system's message is only "Resource
//! temporarily unavailable".

use std::io::{self, ErrorKind};
use std::path::Path;
use std::thread;

use parking_lot::Mutex;
use rustix::process::{Resource, getrlimit};

/// The variable with the stack size of threads in bytes, which the standard library reads.
const MIN_STACK: &str = "RUST_MIN_STACK";
/// A stack size that is the likely reason for a failed start.
const HUGE_STACK: usize = 4 << 30;

/// Stack of a thread that only tests whether it can start.
const STACK: usize = 64 << 10;

/// The system refuses another thread or process.
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
#[error("cannot start another thread or process: {reason}. {cure}")]
pub struct NoThreads {
    reason: String,
    cure: &'static str,
}

crate::debug_is_display!(NoThreads);

const CURE: &str = "Raise the limit (`ulimit -u` or `-v`, `nproc` in limits.conf, TasksMax of a \
                    service, --pids-limit of a container), or start fewer ranks or threads \
                    (--nproc, RAYON_NUM_THREADS, data.workers)";

impl NoThreads {
    /// The reason why a thread or process failed to start with `error`; `None` for other errors.
    pub fn of(error: &io::Error) -> Option<Self> {
        match error.kind() {
            ErrorKind::WouldBlock => Some(Self::by_limits()),
            ErrorKind::InvalidInput => Self::by_stack(),
            _ => None,
        }
    }

    /// The same for a library's error with a system error as its source.
    pub fn behind(error: &dyn std::error::Error) -> Option<Self> {
        Self::of(error.source()?.downcast_ref()?)
    }

    /// The same for the message of a library's panic, if the library panics without a thread.
    pub fn of_panic(words: &str) -> Option<Self> {
        // The form in which the standard library and rayon print an `io::Error`.
        if !words.contains("thread") {
            return None;
        }
        match words.contains("kind: WouldBlock") {
            true => Some(Self::by_limits()),
            false => Self::by_stack().filter(|_| words.contains("kind: InvalidInput")),
        }
    }

    /// The explanation for a stack size that no thread can have.
    fn by_stack() -> Option<Self> {
        let given = std::env::var(MIN_STACK).ok()?;
        let bytes = given
            .parse::<usize>()
            .ok()
            .filter(|bytes| *bytes >= HUGE_STACK)?;
        Some(Self {
            reason: format!("{MIN_STACK} gives each thread {} GiB of stack", bytes >> 30),
            cure: "Unset it",
        })
    }

    /// The explanation from the limits in force.
    fn by_limits() -> Self {
        if let Some(stack) = Self::by_stack() {
            return stack;
        }
        let user = getrlimit(Resource::Nproc).current;
        let user = user.map(|limit| format!("the limit for this user is {limit} (`ulimit -u`)"));
        let group = pids_max()
            .map(|limit| format!("the limit for this container or job is {limit} (pids.max)"));
        // Each thread needs address space for its stack.
        let memory = getrlimit(Resource::As).current;
        let memory = memory.map(|limit| {
            format!(
                "this process is limited to {} MiB of address space (`ulimit -v`)",
                limit >> 20
            )
        });
        let limits: Vec<String> = [user, group, memory].into_iter().flatten().collect();
        let reason = match limits.is_empty() {
            true => "the system is at its limit (kernel.threads-max)".to_owned(),
            false => limits.join(", and "),
        };
        Self { reason, cure: CURE }
    }
}

impl From<NoThreads> for io::Error {
    fn from(error: NoThreads) -> Self {
        Self::new(ErrorKind::WouldBlock, error)
    }
}

/// `error`, with the limit named if it is the reason.
pub(crate) fn named(error: io::Error) -> io::Error {
    NoThreads::of(&error).map_or(error, io::Error::from)
}

/// Checks that `threads` more threads can start now, by starting them.
///
/// # Errors
/// Fails if they cannot. Other processes of the same user may take the free threads, so a later
/// start may fail nevertheless.
pub fn make_room(threads: usize) -> Result<(), NoThreads> {
    let gate = Mutex::new(());
    let wait = || drop(gate.lock());
    thread::scope(|scope| {
        let held = gate.lock();
        let started = (0..threads).try_for_each(|_| {
            let thread = thread::Builder::new().stack_size(STACK);
            thread.spawn_scoped(scope, wait).map(drop)
        });
        drop(held);
        started.map_err(|error| {
            NoThreads::of(&error).unwrap_or_else(|| NoThreads {
                reason: error.to_string(),
                cure: CURE,
            })
        })
    })
}

/// The lowest limit of this process's control groups.
fn pids_max() -> Option<u64> {
    let groups = std::fs::read_to_string("/proc/self/cgroup").ok()?;
    groups.lines().filter_map(limit_of_group).min()
}

/// The limit of the group in a line such as `0::/user.slice` or `5:pids:/docker/7f`, or of a group
/// above it.
fn limit_of_group(line: &str) -> Option<u64> {
    let mut parts = line.splitn(3, ':').skip(1);
    let root = match parts.next()? {
        "" => "/sys/fs/cgroup",
        "pids" => "/sys/fs/cgroup/pids",
        _ => return None,
    };
    let path = Path::new(root).join(parts.next()?.trim_start_matches('/'));
    let groups = path.ancestors().take_while(|group| group.starts_with(root));
    let limit = |group: &Path| std::fs::read_to_string(group.join("pids.max")).ok();
    groups
        .filter_map(|group| limit(group)?.trim().parse().ok())
        .min()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_limit_is_one() {
        let refused = NoThreads::of(&ErrorKind::WouldBlock.into()).unwrap();
        let text = refused.to_string();
        assert!(text.contains("ulimit -u"), "{text}");
        assert_eq!(io::Error::from(refused).to_string(), text);
        assert_eq!(NoThreads::of(&ErrorKind::NotFound.into()), None);
        assert_eq!(named(ErrorKind::WouldBlock.into()).to_string(), text);
        let other = named(ErrorKind::NotFound.into());
        assert_eq!(other.kind(), ErrorKind::NotFound);
        assert_eq!(NoThreads::behind(&other), None);
        // As in `thread::spawn`.
        let error = io::Error::from_raw_os_error(11);
        let words = format!("failed to spawn thread: {error:?}");
        assert!(NoThreads::of_panic(&words).is_some(), "{words}");
        assert_eq!(NoThreads::of_panic("index out of bounds"), None);
    }

    #[test]
    fn there_is_room_for_some() {
        make_room(0).unwrap();
        make_room(8).unwrap();
    }

    #[test]
    fn lines_of_groups_may_be_anything() {
        for line in [
            "",
            ":",
            "0:",
            "0::",
            "0::/nowhere/at/all",
            "1:cpu:/",
            "::../../etc",
        ] {
            let _ = limit_of_group(line);
        }
        assert_eq!(limit_of_group("1:cpu:/"), None);
    }
}
