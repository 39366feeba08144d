//! Ends this process if an MPI call takes too long: MPI has no timeouts.

use std::time::Duration;

use crate::deadline::Allowance;
use crate::watchdog::{LAST_WORDS, Lookout, Verdict, say};

/// Ends the process unless the returned value is dropped within `limit`. Needs a
/// [started](crate::watchdog::start) watchdog.
pub(super) fn within(what: &'static str, limit: Duration) -> Lookout {
    let mut allowance = Allowance::of(limit);
    Lookout::new(Box::new(move |now| {
        allowance.left(now).is_zero().then(|| Verdict {
            reason: format!(
                "{what} took more than {} s. Check that all ranks are alive and that the launcher \
                 matches the MPI library",
                limit.as_secs()
            ),
            tell: say,
            patience: LAST_WORDS,
        })
    }))
}
