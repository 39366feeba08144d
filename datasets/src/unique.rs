//! Names that nobody else uses, for files in folders that other processes and hosts write to as well.

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

/// The name of this host, fit for a file's name.
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
