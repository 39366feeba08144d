//! A counter in shared memory that one rank raises and others wait for.
//!
//! A waiter spins first, because the peer is usually there within a microsecond. Then it sleeps in
//! the kernel: if CPUs are shared, a spinning rank keeps the rank it waits for from running.
//! `sched_yield` instead costs a millisecond per hop beside other load.

use std::sync::atomic::{AtomicU32, Ordering};

use rustix::thread::futex;
use rustix::time::Timespec;

use super::Stop;
use crate::transport::Watch;

/// Rounds of spinning if every rank of the host has a CPU of its own (some 20 µs), and if they
/// share CPUs.
const SPIN_ALONE: u32 = 2000;
const SPIN_SHARED: u32 = 100;

/// Number of rounds to spin, for a rank with or without its own CPU.
pub(super) fn spin_rounds(has_processor: bool) -> u32 {
    match has_processor {
        true => SPIN_ALONE,
        false => SPIN_SHARED,
    }
}

/// An epoch and the number of sleepers. It counts modulo 2³²: epochs are compared by distance.
#[repr(C)]
pub(super) struct Flag {
    epoch: AtomicU32,
    waiters: AtomicU32,
}

impl Flag {
    /// The current epoch.
    pub fn epoch(&self) -> u32 {
        self.epoch.load(Ordering::Acquire)
    }

    /// Whether it has reached `epoch`.
    pub fn reached(&self, epoch: u32) -> bool {
        self.epoch().wrapping_sub(epoch).cast_signed() >= 0
    }

    /// Sets it to `epoch` and wakes the sleepers. Earlier writes are visible to a thread that sees
    /// the epoch.
    pub fn post(&self, epoch: u32) {
        // Sequentially consistent with the pair in `sleep`: either the sleeper sees the epoch or we
        // see the sleeper.
        self.epoch.swap(epoch, Ordering::SeqCst);
        self.wake();
    }

    /// Raises it by one, for flags that several ranks ring.
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

    /// Waits until rank `owner` has raised it to `epoch`.
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

    /// Sleeps while the epoch is `epoch`, at most `limit`.
    pub fn sleep(&self, epoch: u32, limit: std::time::Duration) {
        self.waiters.fetch_add(1, Ordering::SeqCst);
        if self.epoch.load(Ordering::SeqCst) == epoch {
            let limit = Timespec::try_from(limit).unwrap_or(Timespec {
                tv_sec: 0,
                tv_nsec: 0,
            });
            // Woken, interrupted, timed out or changed: the caller looks again.
            let _ = futex::wait(&self.epoch, futex::Flags::empty(), epoch, Some(&limit));
        }
        self.waiters.fetch_sub(1, Ordering::SeqCst);
    }
}
