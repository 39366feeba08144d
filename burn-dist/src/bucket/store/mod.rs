//! Memory for gradients from the hooks to the optimizer. One trait hides whether it is host or
//! device memory.

mod device;
mod elements;
mod host;

use std::ops::Range;
use std::sync::Arc;

use burn::tensor::{Device, Tensor};

use super::error::BucketError;
use super::layout::BucketLayout;
use super::partition::Partition;
use crate::Error;
use crate::flat::Part;
use crate::fused::{Fused, FusedState};

pub(crate) use device::{
    Alone, DeviceCollectives, DeviceHandle, DeviceStore, Resident, take_parts,
};
pub(crate) use elements::{burn_dtype, gradient_dtype};
pub(crate) use host::HostStore;

/// The gradients of a model: collects them in buckets, reduces them over ranks, and keeps them for
/// the optimizer. It also gathers values from the ranks' parts.
///
/// Buckets are sent and waited for in the same order on every rank. The caller decides the order
/// and the time.
pub(crate) trait GradientStore: Send {
    fn partition(&self) -> &Arc<Partition>;

    /// Device of the parameters and of all results.
    fn device(&self) -> &Device;

    /// Approximate number of elements to compute together. One parameter at a time if batches gain
    /// nothing.
    fn together(&self) -> usize;

    /// Puts the gradient of one use of a parameter into its place, or adds it to the one there.
    fn put(&mut self, parameter: usize, gradient: Tensor<1>) -> Result<(), BucketError>;

    /// Adds the gradients to those of this rank's earlier virtual ranks; missing ones are zero. The
    /// next gradients are those of its next virtual rank.
    fn end_virtual_rank(&mut self) -> Result<(), BucketError>;

    /// Starts the reduction of a bucket; missing gradients are zero.
    fn send(&mut self, bucket: usize) -> Result<(), BucketError>;

    /// Waits for a bucket in flight and adds what this rank keeps of it. Returns whether one was in
    /// flight.
    fn arrive(&mut self, bucket: usize) -> Result<bool, BucketError>;

    /// Sends this rank's shard of a bucket to the mean over replicas, if there are any.
    fn replicate(&mut self, bucket: usize) -> Result<(), BucketError>;

    /// Waits for a shard on its way to the mean over replicas.
    fn arrive_replicated(&mut self, bucket: usize) -> Result<(), BucketError>;

    /// Sum of squares of the gradients in one of this rank's [shards](Partition::shards), even if
    /// the rank has more gradients: sums of the same parts have the same bits.
    fn sum_of_squares(&self, shard: usize) -> Result<f64, BucketError>;

    /// The same sum for each of `parameters`.
    fn squares(&self, shard: usize, parameters: &[usize]) -> Result<Vec<f64>, BucketError>;

    /// Copies of the reduced gradients of this rank's part of `parameters`, in their order; `None`
    /// if the part is empty.
    fn shard(&self, parameters: &[usize]) -> Result<Vec<Option<Tensor<1>>>, BucketError>;

    /// Replaces one of these gradients.
    fn replace(&mut self, parameter: usize, gradient: Tensor<1>) -> Result<(), BucketError>;

    /// Steps this rank's part of parameters with their reduced gradients times `factor`; returns
    /// new values and states.
    fn step(
        &self,
        parameters: Vec<FusedStep<'_>>,
        factor: Option<f32>,
    ) -> Result<Vec<(Tensor<1>, Option<FusedState>)>, BucketError>;

    /// Moves averages towards values by `weight` of the distance.
    fn blend(
        &self,
        averages_and_values: Vec<[Tensor<1>; 2]>,
        weight: f32,
    ) -> Result<Vec<Tensor<1>>, BucketError>;

    /// Starts gathering a bucket of values. `piece` returns this rank's part of a parameter.
    fn gather(
        &self,
        bucket: usize,
        piece: &mut dyn FnMut(usize) -> Option<Tensor<1>>,
    ) -> Result<Box<dyn Gathering>, Error>;

    /// Drops the gradients: the next ones begin a new step.
    fn reset(&mut self);

    /// Number of shards on their way to the mean over replicas.
    #[cfg(test)]
    fn replicating(&self) -> usize;
}

/// A parameter that is stepped in one pass.
pub(crate) struct FusedStep<'a> {
    pub parameter: usize,
    pub fused: Fused,
    pub learning_rate: f64,
    /// This rank's part of the parameter.
    pub values: Part<'a>,
    /// `None` before the first step.
    pub state: Option<FusedState>,
}

/// A bucket of values that is being gathered from all ranks.
pub(crate) trait Gathering: Send {
    /// Waits until the values have arrived.
    fn wait(&mut self) -> Result<(), Error>;

    /// Parts of the gathered values, without copies if possible; empty before they have arrived.
    fn parts(&self, places: &[Range<usize>]) -> Vec<Tensor<1>>;

    /// Replaces the bucket's parameters in `values` (all parameters) by the gathered ones.
    fn replace(&self, layout: &BucketLayout, values: &mut [Tensor<1>]) -> Result<(), Error>;
}
