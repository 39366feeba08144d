//! For programs that are built for GPUs.

use std::ops::Range;

use burn::tensor::{Device, Tensor};
use cubecl_environment::stream::{StreamPolicy, set_policy};
use kernels::gpu;
pub(crate) use kernels::gpu::{AdamStep, SgdStep};

/// The kernels for GPUs, where they take the tensors of a device.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Kernels(());

impl Kernels {
    /// Those for `device`; none if it is no GPU, or Burn's own kernels were asked for.
    pub fn on(device: &Device) -> Option<Self> {
        kernels::policy::on_gpu(device).then_some(Self(()))
    }

    /// Writes each part to its place in `flat`, which the number before it begins.
    pub fn put_parts(self, flat: Tensor<1>, parts: Vec<(usize, Tensor<1>)>) -> Tensor<1> {
        gpu::put_parts(flat, parts)
    }

    /// Parts of `flat`, without copies where the device allows it.
    pub fn take_parts(self, flat: Tensor<1>, places: &[Range<usize>]) -> Vec<Tensor<1>> {
        gpu::take_parts(flat, places)
    }

    /// Sums of the squares of parts of all `tensors`; none where these have no elements.
    pub fn sums_of_squares(self, tensors: Vec<Tensor<1>>) -> Option<Tensor<1>> {
        gpu::sums_of_squares(tensors)
    }

    /// Moves the first of each pair towards the second by `weight` of the distance.
    pub fn blend(self, weight: f32, pairs: Vec<[Tensor<1>; 2]>) -> Vec<Tensor<1>> {
        gpu::blend(weight, pairs)
    }

    /// New values, from values and gradients.
    pub fn sgd(self, step: &SgdStep, tensors: Vec<[Tensor<1>; 2]>) -> Vec<Tensor<1>> {
        gpu::sgd(step, tensors)
    }

    /// New values and velocities, from values, gradients and velocities.
    pub fn sgd_momentum(self, step: &SgdStep, tensors: Vec<[Tensor<1>; 3]>) -> Vec<[Tensor<1>; 2]> {
        gpu::sgd_momentum(step, tensors)
    }

    /// New values and moments, from values, gradients and moments.
    pub fn adam(self, step: &AdamStep, tensors: Vec<[Tensor<1>; 4]>) -> Vec<[Tensor<1>; 3]> {
        gpu::adam(step, tensors)
    }
}

/// Has all threads share one stream: else every thread would have a stream and a memory pool of its
/// own, which outlives it.
pub(crate) fn few_streams() {
    set_policy(StreamPolicy::Single);
}

/// What the driver calls a device.
pub(crate) fn name(device: &Device) -> Option<String> {
    device.identity().map(|identity| identity.name)
}
