//! Deadlines of waits.

use std::time::{Duration, Instant};

/// Longest wait. The clock cannot represent the end of an arbitrarily long one.
const LONGEST: Duration = Duration::from_secs(30 * 24 * 3600);

/// `limit` from now, or 30 days from now if that is sooner. [`Duration::MAX`] means no limit.
pub(crate) fn after(limit: Duration) -> Instant {
    Instant::now() + limit.min(LONGEST)
}

/// A waiter that has not looked for this long was stopped, by Ctrl-Z or `scontrol suspend`. Both
/// stop all ranks, so no rank is to blame for that time.
const STOPPED: Duration = Duration::from_secs(5);

/// Remaining time of a wait, without the time in which this process was stopped. For frequent
/// looks. A peer that is stopped while this process runs only has its limit.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Allowance {
    until: Instant,
    looked: Instant,
}

impl Allowance {
    /// `limit` from now.
    pub(crate) fn of(limit: Duration) -> Self {
        Self::at(Instant::now(), limit)
    }

    /// `limit` from `now`.
    pub(crate) fn at(now: Instant, limit: Duration) -> Self {
        Self {
            until: now + limit.min(LONGEST),
            looked: now,
        }
    }

    /// Remaining time at `now`.
    pub(crate) fn left(&mut self, now: Instant) -> Duration {
        let away = now.saturating_duration_since(self.looked);
        self.looked = now;
        if away >= STOPPED {
            self.until = self.until.checked_add(away).unwrap_or(self.until);
        }
        self.until.saturating_duration_since(now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_limit_is_too_long() {
        assert!(after(Duration::MAX) > Instant::now() + Duration::from_secs(24 * 3600));
        assert!(after(Duration::ZERO) <= Instant::now());
    }

    #[test]
    fn the_time_in_which_the_process_was_stopped_does_not_count() {
        let limit = Duration::from_secs(1);
        let begin = Instant::now();
        let mut allowance = Allowance::at(begin, limit);
        assert_eq!(allowance.left(begin + limit / 2), limit / 2);
        let stopped = Duration::from_secs(3600);
        assert_eq!(allowance.left(begin + limit / 2 + stopped), limit / 2);
        assert!(allowance.left(begin + 2 * limit + stopped).is_zero());
        assert!(!Allowance::at(begin, Duration::MAX).left(begin).is_zero());
    }
}
