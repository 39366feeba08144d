//! Measures the distance of the CPUs right now.
//!
//! Virtual CPUs move between chip dies, which makes everything that two ranks share several times
//! slower or faster. The round trip of a cache line between two threads tells the states apart.
//! Results of different states must not be compared.

use std::hint::spin_loop;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::Instant;

use crate::stats;

const ROUNDS: u32 = 500;
const SAMPLES: usize = 20;
/// Polls of the line before giving up on a partner that the kernel does not schedule.
const PATIENCE: u32 = 200_000;

/// The word that both threads write, alone in its pair of cache lines.
#[repr(align(128))]
struct Line(AtomicU32);

/// One-way time of a cache line between two threads in nanoseconds, the best of a few samples.
///
/// `None` with one CPU or if the other thread was not scheduled.
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
