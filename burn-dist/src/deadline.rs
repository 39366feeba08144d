//! When a wait ends.

use std::time::{Duration, Instant};

/// Longer than anybody waits; the clock cannot say when a wait of any length ends.
const LONGEST: Duration = Duration::from_secs(30 * 24 * 3600);

/// `limit` from now, or in 30 days if that is sooner: who wants no limit may say [`Duration::MAX`].
pub(crate) fn after(limit: Duration) -> Instant {
    Instant::now() + limit.min(LONGEST)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_limit_is_too_long() {
        assert!(after(Duration::MAX) > Instant::now() + Duration::from_secs(24 * 3600));
        assert!(after(Duration::ZERO) <= Instant::now());
    }
}
