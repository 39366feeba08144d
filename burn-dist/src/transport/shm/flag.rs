//! A counter in shared memory that one rank raises and others wait for.
//!
//! A waiter spins first, because the peer is usually there within a microsecond. If ranks share
//! CPUs, a spinning rank keeps the rank it waits for from running: it lets others run, some times.
//! Then it sleeps in the kernel. Beside other load, `sched_yield` costs a millisecond. A rank that
//! notices it sleeps at once for a while.

use std::cell::Cell;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use rustix::thread::futex;
use rustix::time::Timespec;

use super::Stop;
use crate::transport::Watch;

/// Rounds of spinning if every rank of the host has a CPU of its own (some 20 µs), and if they
/// share CPUs.
const SPIN_ALONE: u32 = 2000;
const SPIN_SHARED: u32 = 100;

/// How often a rank that shares its CPU lets others run before it sleeps.
const YIELDS: u32 = 50;
/// Other ranks of the run give the CPU back sooner, except from a long computation.
const LONG: Duration = Duration::from_micros(100);
/// Waits without a yield after a long one.
const ABSTAINS: u32 = 1000;

/// How a rank waits before it sleeps.
#[derive(Debug)]
pub(super) struct Eagerness {
    /// Rounds to spin.
    rounds: u32,
    /// Whether others may need this CPU.
    yields: bool,
    /// Waits that are left without a yield.
    abstains: Cell<u32>,
}

impl Eagerness {
    /// For a rank with or without its own CPU.
    pub fn new(has_processor: bool) -> Self {
        Self {
            rounds: if has_processor {
                SPIN_ALONE
            } else {
                SPIN_SHARED
            },
            yields: !has_processor,
            abstains: Cell::new(0),
        }
    }

    /// Waits a short time. Returns whether it is `ready`.
    pub fn is_soon(&self, ready: impl Fn() -> bool) -> bool {
        for _ in 0..self.rounds {
            if ready() {
                return true;
            }
            std::hint::spin_loop();
        }
        if !self.yields {
            return false;
        }
        if let Some(left) = self.abstains.get().checked_sub(1) {
            self.abstains.set(left);
            return false;
        }
        for _ in 0..YIELDS {
            let begin = Instant::now();
            std::thread::yield_now();
            if ready() {
                return true;
            }
            if begin.elapsed() > LONG {
                self.abstains.set(ABSTAINS);
                return false;
            }
        }
        false
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
    pub fn wait(
        &self,
        owner: usize,
        epoch: u32,
        eager: &Eagerness,
        watch: &Watch,
    ) -> Result<(), Stop> {
        if eager.is_soon(|| self.reached(epoch)) {
            return Ok(());
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
    pub fn sleep(&self, epoch: u32, limit: Duration) {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_short_wait_ends_when_it_is_over_or_too_long() {
        let looks = Cell::new(0);
        let ready_after = |count: u32| {
            looks.set(0);
            let looks = &looks;
            move || {
                looks.set(looks.get() + 1);
                looks.get() > count
            }
        };
        let alone = Eagerness::new(true);
        assert!(alone.is_soon(ready_after(SPIN_ALONE - 1)));
        assert!(!alone.is_soon(ready_after(SPIN_ALONE)));
        let shared = Eagerness::new(false);
        // A CPU that somebody else took for long: it sleeps at once for a while.
        shared.abstains.set(2);
        for left in [1, 0] {
            assert!(!shared.is_soon(ready_after(SPIN_SHARED)));
            assert_eq!((shared.abstains.get(), looks.get()), (left, SPIN_SHARED));
        }
        let slow = || {
            std::thread::sleep(2 * LONG);
            false
        };
        let yielding = Eagerness {
            rounds: 0,
            ..shared
        };
        assert!(!yielding.is_soon(slow));
        assert_eq!(yielding.abstains.get(), ABSTAINS);
    }
}
