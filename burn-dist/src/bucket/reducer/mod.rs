//! Collects gradients into buckets during backward and starts each bucket's reduction when it is
//! full: an all-reduce, or a reduce-scatter where every rank needs its own shard alone. Where
//! several groups of ranks have a set of shards each, a shard that has arrived goes on its way
//! again in the last backward of a step, to the mean over the ranks that have the same.
//!
//! A bucket is full when none of its parameters has a use left in the graph. Buckets start in
//! their layout's order on every rank, whatever order the hooks fire in, because ranks must issue
//! collectives in the same order. What is still missing when backward ends (parameters without
//! a gradient, or with uses in a graph that this backward did not reach) counts as zero.
//!
//! `collect` follows the calls of the hooks, `phases` those of a step, and `reduced` is for who
//! looks at gradients or steps parameters by them.

mod collect;
mod phases;
mod reduced;

use std::fmt;
use std::ops::Range;
use std::sync::atomic::AtomicUsize;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use burn::tensor::{Device, Tensor};

use super::error::BucketError;
use super::layout::{BucketLayout, ParameterSpec};
use super::partition::Partition;
use super::store::{Gathering, GradientStore};
use crate::Error;

/// Gradients of one model on their way to the mean over all ranks.
pub(crate) struct Reducer {
    partition: Arc<Partition>,
    /// Where the parameters are.
    device: Device,
    together: usize,
    /// Per parameter, its uses in graphs that are alive.
    uses: Vec<AtomicUsize>,
    state: Mutex<State>,
}

/// What a reducer knows of the step that it is in.
struct State {
    phase: Phase,
    store: Box<dyn GradientStore>,
    /// Per parameter, whether any backward of this step had a gradient; after the last one, on any
    /// rank.
    marks: Vec<u8>,
    /// Per parameter, whether nothing more is expected in this backward.
    complete: Vec<bool>,
    /// Per bucket, the parameters that are not complete.
    missing: Vec<usize>,
    /// The bucket to start next.
    next: usize,
    health: Health,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// Between backward passes of a step.
    Waiting,
    /// Backward runs; gradients stay on this rank.
    Accumulating,
    /// Full buckets are sent.
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
    /// An error inside backward that has not been reported yet.
    Failing(BucketError),
    Failed(String),
}

impl State {
    /// Whether any backward of this step had a gradient for a parameter; after the last one, on any
    /// rank.
    fn is_marked(&self, parameter: usize) -> bool {
        self.marks.get(parameter).is_some_and(|mark| *mark != 0)
    }

    /// Whether a bucket has been sent in the backward that is running.
    fn is_sent(&self, bucket: usize) -> bool {
        matches!(self.phase, Phase::Sending { .. }) && bucket < self.next
    }
}

impl Reducer {
    /// Of the gradients in `store`.
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
                health: Health::Good,
            }),
            partition,
        }
    }

    /// The device on which parameters are, and with them their gradients.
    pub(crate) fn device(&self) -> &Device {
        &self.device
    }

    /// Numbers that are stepped together, about.
    pub(crate) fn together(&self) -> usize {
        self.together
    }

    /// The buckets, in the order in which they are sent.
    pub(crate) fn layouts(&self) -> &[BucketLayout] {
        &self.partition.layouts
    }

    /// Per parameter, the elements of which this rank has the reduced gradient.
    pub(crate) fn owned(&self) -> &[Range<usize>] {
        &self.partition.owned
    }

    /// The trainable parameters in visit order.
    pub(crate) fn parameters(&self) -> &[ParameterSpec] {
        &self.partition.parameters
    }

    /// The bucket of a parameter, and its elements there.
    pub(crate) fn place_of(&self, parameter: usize) -> Option<(usize, Range<usize>)> {
        self.partition.place_of(parameter)
    }

    /// Starts gathering a bucket of values, of which `piece` gives what this rank owns of each
    /// parameter. A collective call.
    pub(crate) fn gather(
        &self,
        bucket: usize,
        mut piece: impl FnMut(usize) -> Option<Tensor<1>>,
    ) -> Result<Box<dyn Gathering>, Error> {
        self.lock().store.gather(bucket, &mut piece)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // A panic while collecting is recorded by the hook; the state stays consistent enough to
        // report it.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Number of buckets that the running backward has sent.
    #[cfg(test)]
    pub(super) fn sent(&self) -> usize {
        self.lock().next
    }

    /// Number of shards that are on their way to the mean over replicas.
    #[cfg(test)]
    pub(super) fn replicating(&self) -> usize {
        self.lock().store.replicating()
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
