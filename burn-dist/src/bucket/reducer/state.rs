//! What a reducer knows of the step that it is in.

use burn::tensor::Tensor;

use crate::bucket::error::BucketError;
use crate::bucket::resident::{DeviceHandle, Parts};
use crate::bucket::storage::Arrival;
use crate::{Buffer, Handle};

pub(super) struct State {
    pub phase: Phase,
    pub buckets: Vec<Bucket>,
    /// Per parameter, whether a gradient lies in its place.
    pub present: Vec<bool>,
    /// Per parameter, whether any backward of this step had a gradient; after the last one, on any
    /// rank. For as long as that is found out, what ranks compare stands behind.
    pub marks: Vec<u8>,
    /// Per parameter, whether nothing more is expected in this backward.
    pub complete: Vec<bool>,
    /// The bucket to start next.
    pub next: usize,
    pub health: Health,
}

impl State {
    /// Whether any backward of this step had a gradient for a parameter; after the last one, on any rank.
    pub fn is_marked(&self, parameter: usize) -> bool {
        self.marks.get(parameter).is_some_and(|mark| *mark != 0)
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Phase {
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

pub(super) struct Bucket {
    pub memory: Memory,
    /// Parameters that are not complete.
    pub missing: usize,
    /// Sum of this rank's shards over the backward passes of the step, where nothing else is kept.
    pub shard: Option<Shard>,
    /// This rank's shard, on its way to the mean over replicas.
    pub replicating: Option<Handle>,
    /// Instead of all that, where gradients stay on a device.
    pub there: There,
}

/// What there is of a bucket on a device.
#[derive(Default)]
pub(super) struct There {
    /// Gradients that have come.
    pub parts: Parts,
    /// The bucket on its way to the mean.
    pub travelling: Option<Box<dyn DeviceHandle>>,
    /// Their mean, where all of it is kept and there are other ranks.
    pub mean: Option<Tensor<1>>,
    /// Else the sum of this rank's shards over the backward passes of the step.
    pub shard: Option<Tensor<1>>,
    /// The shard on its way to the mean over replicas.
    pub replicating: Option<Box<dyn DeviceHandle>>,
}

pub(super) struct Shard {
    pub buffer: Buffer,
    pub arrival: Arrival,
}

pub(super) enum Memory {
    /// Not needed at the moment.
    None,
    Here(Buffer),
    Travelling(Handle),
    Lost,
}

pub(super) enum Health {
    Good,
    /// An error inside backward that has not been reported yet.
    Failing(BucketError),
    Failed(String),
}
