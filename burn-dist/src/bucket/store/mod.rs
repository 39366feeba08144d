//! Memory for gradients, from the hooks to the optimizer, and what is computed in it. One trait
//! hides whether that memory is the host's or a device's.

mod device;
mod elements;
mod host;

use std::fmt;
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

/// The gradients of a model, which are collected in buckets, reduced over the ranks, and kept until
/// the optimizer has had them; and the collectives that make wholes of what each rank owns.
///
/// Buckets are sent and waited for in the same order on every rank. In which, and when, is not
/// decided here.
pub(crate) trait GradientStore: fmt::Debug + Send {
    fn partition(&self) -> &Arc<Partition>;

    /// Where the parameters are, and what is made of the gradients.
    fn device(&self) -> &Device;

    /// Numbers that are computed with together, about; a parameter at a time if there is nothing to
    /// be gained.
    fn together(&self) -> usize;

    /// Puts the gradient of one use of a parameter into its place, or adds it to what lies there.
    fn put(&mut self, parameter: usize, gradient: Tensor<1>) -> Result<(), BucketError>;

    /// Starts the reduction of a bucket; what is missing of it is zero.
    fn send(&mut self, bucket: usize) -> Result<(), BucketError>;

    /// Waits for a bucket that is on its way, and adds what this rank keeps of it to what it has.
    /// Gives whether there was something to come.
    fn arrive(&mut self, bucket: usize) -> Result<bool, BucketError>;

    /// Sends this rank's shard of a bucket on to the mean over replicas, if there are any.
    fn replicate(&mut self, bucket: usize) -> Result<(), BucketError>;

    /// Waits for a shard that is on its way to the mean over replicas.
    fn arrive_replicated(&mut self, bucket: usize) -> Result<(), BucketError>;

    /// Sum of the squares of the gradients in this rank's shards: of its shards alone, where it has
    /// more, since sums of the same parts have the same bits.
    fn sum_of_squares(&self) -> Result<f64, BucketError>;

    /// The same of each of `parameters`.
    fn squares(&self, parameters: &[usize]) -> Result<Vec<f64>, BucketError>;

    /// The reduced gradients of what this rank owns of `parameters`, in their order, to be kept;
    /// none where that is nothing.
    fn shard(&self, parameters: &[usize]) -> Result<Vec<Option<Tensor<1>>>, BucketError>;

    /// Replaces one of these.
    fn replace(&mut self, parameter: usize, gradient: Tensor<1>) -> Result<(), BucketError>;

    /// Steps parameters by the reduced gradients of what this rank owns of them, times `factor`:
    /// the new values, and states.
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

    /// Starts gathering a bucket of values, of which `piece` gives what this rank owns of each
    /// parameter.
    fn gather(
        &self,
        bucket: usize,
        piece: &mut dyn FnMut(usize) -> Option<Tensor<1>>,
    ) -> Result<Box<dyn Gathering>, Error>;

    /// Drops the gradients: the next ones begin a new step.
    fn reset(&mut self);

    /// Number of shards that are on their way to the mean over replicas.
    #[cfg(test)]
    fn replicating(&self) -> usize;
}

/// A parameter that is stepped in one pass.
pub(crate) struct FusedStep<'a> {
    pub parameter: usize,
    pub fused: Fused,
    pub learning_rate: f64,
    /// What this rank owns of it.
    pub values: Part<'a>,
    /// None before the first step.
    pub state: Option<FusedState>,
}

/// A bucket of values that is gathered from all ranks.
pub(crate) trait Gathering: Send {
    /// Waits until it is there.
    fn wait(&mut self) -> Result<(), Error>;

    /// Parts of what has come, not copied where that is possible; none of what has not.
    fn parts(&self, places: &[Range<usize>]) -> Vec<Tensor<1>>;

    /// Replaces the values of its parameters, of all that there are, by those that have come.
    fn replace(&self, layout: &BucketLayout, values: &mut [Tensor<1>]) -> Result<(), Error>;
}
