//! Collects gradients into buckets during backward and starts the reduction of full buckets.
//!
//! The reduction is an all-reduce, or a reduce-scatter if every rank needs only its own shard. If
//! several groups of ranks have a set of shards each, shards that arrive in the last backward of a
//! step are then averaged over the ranks with the same shard.
//!
//! A bucket is full when none of its parameters has a use left in the graph. All ranks must issue
//! collectives in the same order, so buckets start in their layout's order, whatever the order of
//! the hooks. Gradients still missing when backward ends count as zero: their parameters have no
//! gradient, or uses in a graph that this backward did not reach.
//!
//! `collect` handles the calls of the hooks, `phases` those of a step, and `reduced` gives access
//! to the gradients for reading, changing and stepping.

mod collect;
mod phases;
mod reduced;

use std::fmt;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;

use burn::tensor::{Device, Tensor};
use parking_lot::Mutex;

use super::error::BucketError;
use super::layout::{BucketLayout, ParameterSpec};
use super::partition::Partition;
use super::store::{Gathering, GradientStore};
use crate::Error;

/// Averages the gradients of one model over all ranks.
pub(crate) struct Reducer {
    partition: Arc<Partition>,
    /// Device of the parameters.
    device: Device,
    together: usize,
    /// Number of uses of each parameter in live graphs.
    uses: Vec<AtomicUsize>,
    /// If a hook panics while it collects, the state stays consistent enough to report that.
    state: Mutex<State>,
}

/// State of the current step.
struct State {
    phase: Phase,
    store: Box<dyn GradientStore>,
    /// Whether a backward of this step had a gradient for a parameter; after the last backward, on
    /// any rank.
    marks: Vec<u8>,
    /// Whether this backward expects nothing more for a parameter.
    complete: Vec<bool>,
    /// Number of incomplete parameters in each bucket.
    missing: Vec<usize>,
    /// The next bucket to start.
    next: usize,
    /// Factor of the gradients of this backward.
    scale: Option<f64>,
    health: Health,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// Between backward passes of a step.
    Waiting,
    /// Backward runs; gradients stay on this rank.
    Accumulating,
    /// Backward runs; full buckets are sent.
    Sending {
        /// Whether this is the last backward of the step.
        last: bool,
    },
    /// All buckets have been sent.
    Sent,
    /// All buckets hold the mean over ranks.
    Reduced,
}

enum Health {
    Good,
    /// An error inside backward that is not reported yet.
    Failing(BucketError),
    Failed(String),
}

impl State {
    /// Whether a backward of this step had a gradient for a parameter; after the last backward, on
    /// any rank.
    fn is_marked(&self, parameter: usize) -> bool {
        self.marks.get(parameter).is_some_and(|mark| *mark != 0)
    }

    /// Whether the running backward has sent a bucket.
    fn is_sent(&self, bucket: usize) -> bool {
        matches!(self.phase, Phase::Sending { .. }) && bucket < self.next
    }
}

impl Reducer {
    /// Collects the gradients in `store`.
    pub(crate) fn new(store: Box<dyn GradientStore>) -> Self {
        let partition = store.partition().clone();
        let parameters = partition.parameters.len();
        Self {
            device: store.device().clone(),
            together: store.together(),
            uses: (0..parameters).map(|_| AtomicUsize::new(0)).collect(),
            state: Mutex::new(State {
                phase: Phase::Waiting,
                store,
                marks: vec![0; parameters],
                complete: vec![false; parameters],
                missing: vec![0; partition.layouts.len()],
                next: 0,
                scale: None,
                health: Health::Good,
            }),
            partition,
        }
    }

    /// Device of the parameters and their gradients.
    pub(crate) fn device(&self) -> &Device {
        &self.device
    }

    /// Approximate number of elements that are stepped together.
    pub(crate) fn together(&self) -> usize {
        self.together
    }

    /// The buckets, in the order in which they are sent.
    pub(crate) fn layouts(&self) -> &[BucketLayout] {
        &self.partition.layouts
    }

    /// Elements of each parameter whose reduced gradient this rank has.
    pub(crate) fn owned(&self) -> &[Range<usize>] {
        &self.partition.owned
    }

    /// The trainable parameters in visit order.
    pub(crate) fn parameters(&self) -> &[ParameterSpec] {
        &self.partition.parameters
    }

    /// Bucket of a parameter, and its elements there.
    pub(crate) fn place_of(&self, parameter: usize) -> Option<(usize, Range<usize>)> {
        self.partition.place_of(parameter)
    }

    /// Starts gathering a bucket of values. `piece` returns this rank's part of a parameter. A
    /// collective call.
    pub(crate) fn gather(
        &self,
        bucket: usize,
        mut piece: impl FnMut(usize) -> Option<Tensor<1>>,
    ) -> Result<Box<dyn Gathering>, Error> {
        self.state.lock().store.gather(bucket, &mut piece)
    }

    /// Number of buckets that the running backward has sent.
    #[cfg(test)]
    pub(super) fn sent(&self) -> usize {
        self.state.lock().next
    }

    /// Number of shards on their way to the mean over replicas.
    #[cfg(test)]
    pub(super) fn replicating(&self) -> usize {
        self.state.lock().store.replicating()
    }
}

impl fmt::Debug for Reducer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "Reducer({} parameters in {} buckets)",
            self.partition.parameters.len(),
            self.partition.layouts.len()
        )
    }
}
