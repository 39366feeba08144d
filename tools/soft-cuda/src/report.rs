//! Lines on stderr, and with `SOFT_CUDA_LOG` counts of calls and seconds per kernel.
#![allow(unsafe_code)] // atexit is C's.

use std::collections::BTreeMap;
use std::ffi::c_int;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Mutex, MutexGuard, Once, PoisonError};
use std::time::Duration;

use crate::settings::settings;
use crate::tally;

static CALLS: Mutex<BTreeMap<&'static str, u64>> = Mutex::new(BTreeMap::new());
static KERNELS: Mutex<BTreeMap<String, (Duration, u64)>> = Mutex::new(BTreeMap::new());

/// Largest number of kernels in the summary.
const LISTED: usize = 250;

/// Locks a mutex even after a panic elsewhere.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Prints one line for the user.
pub(crate) fn say(what: impl std::fmt::Display) {
    eprintln!("soft-cuda: {what}");
}

/// Counts a call of the driver.
pub(crate) fn count(call: &'static str) {
    if settings().log {
        at_exit();
        *lock(&CALLS).entry(call).or_default() += 1;
    }
}

/// Runs the body of a call, or enqueued work. Catches panics.
pub(crate) fn contained<E>(
    name: &str,
    panicked: E,
    work: impl FnOnce() -> Result<(), E>,
) -> Result<(), E> {
    catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|_| {
        say(format_args!("{name}: a mistake of soft-cuda itself"));
        Err(panicked)
    })
}

/// Adds to the time of a kernel.
pub(crate) fn time(kernel: &str, took: Duration) {
    if settings().log {
        at_exit();
        let mut kernels = lock(&KERNELS);
        let (sum, launches) = kernels.entry(kernel.to_owned()).or_default();
        *sum += took;
        *launches += 1;
    }
}

unsafe extern "C" {
    fn atexit(function: extern "C" fn()) -> c_int;
}

pub(crate) fn at_exit() {
    static ONCE: Once = Once::new();
    // SAFETY: the function is called at the end of the process or, before, when this library is
    // unloaded.
    ONCE.call_once(|| unsafe {
        atexit(summary);
    });
}

extern "C" fn summary() {
    if let Some(path) = &settings().counts {
        tally::write(path);
    }
    if !settings().log {
        return;
    }
    let mut kernels: Vec<_> = lock(&KERNELS)
        .iter()
        .map(|(name, &(time, launches))| (time, launches, name.clone()))
        .collect();
    kernels.sort_by(|a, b| b.cmp(a));
    for (time, launches, name) in kernels.into_iter().take(LISTED) {
        say(format_args!(
            "{:9.3} s {launches:6} × {name}",
            time.as_secs_f64()
        ));
    }
    let pid = std::process::id();
    say(format_args!("calls of process {pid}: {:?}", lock(&CALLS)));
}
