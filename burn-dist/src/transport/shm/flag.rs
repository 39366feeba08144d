//! A counter in shared memory that one rank raises and others wait for.
//!
//! Spin first, because the peer is usually there within a microsecond; then sleep in the kernel,
//! because next to other work on the same processors a spinning rank keeps the one it waits for
//! from running. Measured against `sched_yield`, which costs a millisecond per hop beside a
//! foreign load.

use std::sync::atomic::{AtomicU32, Ordering};

use rustix::thread::futex;
use rustix::time::Timespec;

use super::Stop;
use crate::transport::Watch;

/// Rounds of spinning when every rank of the host has a processor of its own (some 20 µs), and
/// when they share.
const SPIN_ALONE: u32 = 2000;
const SPIN_SHARED: u32 = 100;

/// How many rounds a rank should spin that has a processor alone, or shares it.
pub(super) fn spin_rounds(has_processor: bool) -> u32 {
    match has_processor {
        true => SPIN_ALONE,
        false => SPIN_SHARED,
    }
}

/// An epoch and the number of sleepers. Counts modulo 2³²: epochs are compared by distance.
#[repr(C)]
pub(super) struct Flag {
    epoch: AtomicU32,
    waiters: AtomicU32,
}

impl Flag {
    /// The epoch it stands at.
    pub fn epoch(&self) -> u32 {
        self.epoch.load(Ordering::Acquire)
    }

    /// Whether it has come to `epoch`.
    pub fn reached(&self, epoch: u32) -> bool {
        self.epoch().wrapping_sub(epoch).cast_signed() >= 0
    }

    /// Sets it to `epoch` and wakes whoever sleeps. Everything written before is visible to who
    /// sees the epoch.
    pub fn post(&self, epoch: u32) {
        // Sequentially consistent with the pair in `sleep`: either the sleeper sees the epoch or
        // we see the sleeper.
        self.epoch.swap(epoch, Ordering::SeqCst);
        self.wake();
    }

    /// Raises it by one: for flags that several ranks ring.
    pub fn ring(&self) {
        self.epoch.fetch_add(1, Ordering::SeqCst);
        self.wake();
    }

    fn wake(&self) {
        if self.waiters.load(Ordering::SeqCst) > 0 {
            // The only possible errors are bad addresses, which a reference rules out.
            let _ = futex::wake(&self.epoch, futex::Flags::empty(), u32::MAX >> 1);
        }
    }

    /// Waits until rank `owner` has brought it to `epoch`.
    pub fn wait(&self, owner: usize, epoch: u32, spin: u32, watch: &Watch) -> Result<(), Stop> {
        for _ in 0..spin {
            if self.reached(epoch) {
                return Ok(());
            }
            std::hint::spin_loop();
        }
        loop {
            let now = self.epoch();
            if now.wrapping_sub(epoch).cast_signed() >= 0 {
                return Ok(());
            }
            let limit = watch.slice(owner);
            self.sleep(
                now,
                limit.map_err(|interrupt| Stop::Waiting {
                    rank: owner,
                    interrupt,
                })?,
            );
        }
    }

    /// Sleeps while it stands at `epoch`, at most `limit`.
    pub fn sleep(&self, epoch: u32, limit: std::time::Duration) {
        self.waiters.fetch_add(1, Ordering::SeqCst);
        if self.epoch.load(Ordering::SeqCst) == epoch {
            let limit = Timespec::try_from(limit).unwrap_or(Timespec {
                tv_sec: 0,
                tv_nsec: 0,
            });
            // Woken, interrupted, timed out or changed meanwhile: the caller looks again.
            let _ = futex::wait(&self.epoch, futex::Flags::empty(), epoch, Some(&limit));
        }
        self.waiters.fetch_sub(1, Ordering::SeqCst);
    }
}
