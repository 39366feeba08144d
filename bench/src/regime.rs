//! How far apart the processors are right now.
//!
//! Virtual processors move between chip dies, and then everything that two ranks share becomes
//! several times slower or faster. The time that a cache line takes to travel from one thread to
//! another and back tells the states apart, so that figures of different states are not compared.

use std::hint::spin_loop;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::Instant;

use crate::stats;

const ROUNDS: u32 = 500;
const SAMPLES: usize = 20;
/// Looks at the line after which a partner that the kernel does not run is given up.
const PATIENCE: u32 = 200_000;

/// The one word that both threads write, alone in its pair of cache lines.
#[repr(align(128))]
struct Line(AtomicU32);

/// Nanoseconds that a cache line takes from one thread to another, one way; the best of a few
/// samples. `None` on a machine with one processor or when the other thread was not run.
pub fn ping_pong_ns() -> Option<f64> {
    if thread::available_parallelism().map_or(1, usize::from) < 2 {
        return None;
    }
    let samples: Vec<f64> = (0..SAMPLES).filter_map(|_| sample()).collect();
    stats::best(&samples)
}

fn sample() -> Option<f64> {
    let line = Line(AtomicU32::new(0));
    thread::scope(|scope| {
        let partner = thread::Builder::new()
            .spawn_scoped(scope, || answer(&line))
            .ok()?;
        let start = Instant::now();
        let finished = (0..ROUNDS).all(|round| {
            line.0.store(2 * round + 1, Ordering::Release);
            wait_for(&line, 2 * round + 2)
        });
        let elapsed = start.elapsed();
        partner.join().ok()?;
        finished.then(|| elapsed.as_secs_f64() * 1e9 / f64::from(2 * ROUNDS))
    })
}

fn answer(line: &Line) {
    for round in 0..ROUNDS {
        if !wait_for(line, 2 * round + 1) {
            return;
        }
        line.0.store(2 * round + 2, Ordering::Release);
    }
}

fn wait_for(line: &Line, value: u32) -> bool {
    for _ in 0..PATIENCE {
        if line.0.load(Ordering::Acquire) == value {
            return true;
        }
        spin_loop();
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cache_line_takes_time() {
        if let Some(ns) = ping_pong_ns() {
            assert!(ns > 1.0 && ns < 1e6, "{ns} ns");
        }
    }
}
