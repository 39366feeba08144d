//! Makes the allocator keep the memory that tensors give back, instead of returning it to the
//! system after every operation and taking it anew, page by page, for the next one. That took a
//! fifth of the processor time of a small CNN.
//!
//! Allocators read their settings before `main`, so the program starts itself once more with them
//! set. The process stays the same one.

/// The variable with the settings of the GNU C library, and these: no memory of its own for blocks
/// below 32 MiB (the most that can be asked for), and nothing returned to the system before 4 GiB
/// lie idle.
#[cfg(not(target_env = "musl"))]
const VARIABLE: (&str, &str) = (
    "GLIBC_TUNABLES",
    "glibc.malloc.mmap_threshold=33554432:glibc.malloc.trim_threshold=4294967296",
);

/// The same of mimalloc, which static programs have: nothing is returned.
#[cfg(target_env = "musl")]
const VARIABLE: (&str, &str) = ("MIMALLOC_PURGE_DELAY", "-1");

/// Starts this program again with the settings, unless there are any already. Does not return if
/// that works; if not, training is only slower.
///
/// To be called before anything is opened or started.
#[cfg(target_os = "linux")]
pub fn keep_freed_memory() {
    use std::os::unix::process::CommandExt;

    let (name, settings) = VARIABLE;
    if std::env::var_os(name).is_some() {
        return;
    }
    let Ok(program) = std::env::current_exe() else {
        return;
    };
    let mut args = std::env::args_os();
    let mut command = std::process::Command::new(program);
    if let Some(name) = args.next() {
        command.arg0(name);
    }
    let error = command.args(args).env(name, settings).exec();
    tracing::debug!("cannot restart with {name}={settings}: {error}");
}

/// Other systems' allocators have no such settings.
#[cfg(not(target_os = "linux"))]
pub fn keep_freed_memory() {
    let _ = VARIABLE;
}
