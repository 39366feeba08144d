//! Makes the C library keep the memory that tensors give back, instead of returning it to the
//! system after every operation and taking it anew, page by page, for the next one. That took a
//! fifth of the processor time of a small CNN.
//!
//! The library reads its settings before `main`, so the program starts itself once more with them
//! set. The process stays the same one.

/// The variable with the settings of the GNU C library.
const VARIABLE: &str = "GLIBC_TUNABLES";

/// No memory of its own for blocks below 32 MiB (the most that can be asked for), and nothing
/// returned to the system before 4 GiB lie idle.
const SETTINGS: &str =
    "glibc.malloc.mmap_threshold=33554432:glibc.malloc.trim_threshold=4294967296";

/// Starts this program again with the settings, unless there are any already. Does not return if
/// that works; if not, training is only slower.
///
/// To be called before anything is opened or started.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
pub fn keep_freed_memory() {
    use std::os::unix::process::CommandExt;

    if std::env::var_os(VARIABLE).is_some() {
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
    let error = command.args(args).env(VARIABLE, SETTINGS).exec();
    tracing::debug!("cannot start again with {VARIABLE}={SETTINGS}: {error}");
}

/// Other C libraries have no such settings.
#[cfg(not(all(target_os = "linux", target_env = "gnu")))]
pub fn keep_freed_memory() {
    let _ = (VARIABLE, SETTINGS);
}
