//! Timeouts of collectives.
//!
//! Until the first gradients are reduced, ranks may download data, read it or compile kernels while
//! the others wait. After that, a rank that is late for long has a problem.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use super::GroupOptions;
use crate::collective::{Descriptor, Kind};

/// The timeouts of a group. Clones share their state.
#[derive(Clone, Debug)]
pub(crate) struct Patience {
    first: Duration,
    later: Duration,
    is_settled: Arc<AtomicBool>,
}

impl Patience {
    pub(super) fn new(options: &GroupOptions) -> Self {
        Self {
            first: options.first_timeout.max(options.timeout),
            later: options.timeout,
            is_settled: Arc::default(),
        }
    }

    /// Timeout of the next collective.
    pub(crate) fn limit(&self) -> Duration {
        match self.is_settled.load(Ordering::Relaxed) {
            true => self.later,
            false => self.first,
        }
    }

    /// Notes that this collective is done.
    pub(crate) fn note(&self, what: &Descriptor) {
        let reduces = matches!(what.kind, Kind::AllReduce | Kind::ReduceScatter);
        if reduces && what.dtype.is_float() {
            self.is_settled.store(true, Ordering::Relaxed);
        }
    }
}
