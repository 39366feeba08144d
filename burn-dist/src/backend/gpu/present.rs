//! GPU kernels, for builds with a GPU.

use std::ops::Range;

use burn::tensor::{Device, Tensor};
use cubecl_environment::stream::{StreamPolicy, set_policy};
use kernels::gpu;
pub(crate) use kernels::gpu::{AdamStep, SgdStep};

/// The GPU kernels, for a device whose tensors they take.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Kernels(());

impl Kernels {
    /// The kernels for `device`. `None` on a CPU, or if Burn's own kernels were requested.
    pub fn on(device: &Device) -> Option<Self> {
        kernels::policy::on_gpu(device).then_some(Self(()))
    }

    /// Writes each part to `flat` at the offset before it.
    pub fn put_parts(self, flat: Tensor<1>, parts: Vec<(usize, Tensor<1>)>) -> Tensor<1> {
        gpu::put_parts(flat, parts)
    }

    /// Parts of `flat`, without copies if the device allows it.
    pub fn take_parts(self, flat: Tensor<1>, places: &[Range<usize>]) -> Vec<Tensor<1>> {
        gpu::take_parts(flat, places)
    }

    /// Sums of squares of parts of all `tensors`; `None` if they have no elements.
    pub fn sums_of_squares(self, tensors: Vec<Tensor<1>>) -> Option<Tensor<1>> {
        gpu::sums_of_squares(tensors)
    }

    /// Moves the first tensor of each pair towards the second by `weight` of the distance.
    pub fn blend(self, weight: f32, pairs: Vec<[Tensor<1>; 2]>) -> Vec<Tensor<1>> {
        gpu::blend(weight, pairs)
    }

    /// Returns new values, from values and gradients.
    pub fn sgd(self, step: &SgdStep, tensors: Vec<[Tensor<1>; 2]>) -> Vec<Tensor<1>> {
        gpu::sgd(step, tensors)
    }

    /// Returns new values and velocities, from values, gradients and velocities.
    pub fn sgd_momentum(self, step: &SgdStep, tensors: Vec<[Tensor<1>; 3]>) -> Vec<[Tensor<1>; 2]> {
        gpu::sgd_momentum(step, tensors)
    }

    /// Returns new values and moments, from values, gradients and moments.
    pub fn adam(self, step: &AdamStep, tensors: Vec<[Tensor<1>; 4]>) -> Vec<[Tensor<1>; 3]> {
        gpu::adam(step, tensors)
    }
}

/// Makes all threads share one stream. Otherwise every thread gets a stream and a memory pool,
/// which outlive it.
pub(crate) fn few_streams() {
    set_policy(StreamPolicy::Single);
}

/// The driver's name of a device.
pub(crate) fn name(device: &Device) -> Option<String> {
    device.identity().map(|identity| identity.name)
}
