//! Makes the allocator keep freed tensor memory.
//!
//! By default it returns the memory to the system after every operation and gets it back page by
//! page, a fifth of the CPU time of a small CNN. Allocators read their settings before `main`, so
//! the program executes itself again with them. The process ID stays the same.

/// Settings of the GNU C library's allocator, and their variable. Blocks below 32 MiB, the highest
/// limit allowed, get no mapping of their own. Freed memory is returned only above 4 GiB.
#[cfg(not(target_env = "musl"))]
const VARIABLE: (&str, &str) = (
    "GLIBC_TUNABLES",
    "glibc.malloc.mmap_threshold=33554432:glibc.malloc.trim_threshold=4294967296",
);

/// Settings of mimalloc, which static programs use: freed memory is never returned.
#[cfg(target_env = "musl")]
const VARIABLE: (&str, &str) = ("MIMALLOC_PURGE_DELAY", "-1");

/// Executes this program again with the settings, unless they are set already.
///
/// Does not return on success. On failure, training is only slower. Call it before anything is
/// opened or started.
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
