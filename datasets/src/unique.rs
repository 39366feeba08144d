//! Unique names for files in folders that other processes and hosts also write to.

use std::process;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

/// A part of a name that no other thread, process or host uses now.
pub(crate) fn name() -> String {
    static COUNT: AtomicUsize = AtomicUsize::new(0);
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    let nanos = now.map_or(0, |now| now.as_nanos());
    let count = COUNT.fetch_add(1, Ordering::Relaxed);
    format!("{}-{}-{nanos}-{count}", host(), process::id())
}

/// The host that made a [`name`], if it is one.
pub(crate) fn host_in(name: &str) -> Option<&str> {
    // Hosts may have hyphens in their names.
    let mut parts = name.rsplitn(4, '-');
    let mut numbers = parts.by_ref().take(3);
    let is_name = numbers.all(|number| number.parse::<u128>().is_ok());
    parts.next().filter(|_| is_name)
}

/// Name of this host, usable as part of a file name.
pub(crate) fn host() -> String {
    #[cfg(unix)]
    let host = rustix::system::uname()
        .nodename()
        .to_string_lossy()
        .into_owned();
    #[cfg(not(unix))]
    let host = std::env::var("COMPUTERNAME").unwrap_or_default();
    host.replace(|c: char| !c.is_ascii_alphanumeric() && c != '-', "_")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_tell_their_host() {
        assert_eq!(host_in(&name()), Some(&*host()));
        assert_eq!(host_in("node-1-23-456-0"), Some("node-1"));
        for other in ["", "node", "node-1-2", "1-2-3", "node-1-2-x"] {
            assert_eq!(host_in(other), None, "{other}");
        }
    }
}
