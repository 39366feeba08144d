//! How long ranks wait for each other.
//!
//! Until the first gradients have gone round, some ranks download data, read them, or compile
//! kernels while the others wait in whatever collective comes next. After that, who is late for
//! long has a problem.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use super::GroupOptions;
use crate::collective::{Descriptor, Kind};

/// The time-outs of a group; clones know of each other.
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

    /// How long the next collective may take.
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
