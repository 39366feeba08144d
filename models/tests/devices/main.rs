//! GPU operations compared with the same in f64. The GPU is wgpu's, in software without a real one,
//! or the device in `BURN_DIST_TEST_DEVICE`; docs/gpu.md.
#![cfg(any(feature = "wgpu", feature = "cuda"))]

mod attention;
mod batch_norm;
mod check;
mod cross_entropy;
mod dropout;
mod embed;
mod flat_parts;
mod gelu;
mod inputs;
mod layer_norm;
mod max_pool;
mod mean_of_pixels;
mod relu;
mod running_statistics;
mod softmax;
mod sums_of_squares;

use burn::tensor::Device;
use kernels::policy::on_gpu as computes_on;
use kernels::policy::{Choice, scoped};

use check::device;

const EPSILON: f64 = 1e-5;

#[test]
fn gpu_operations_are_burns_if_asked_for() {
    let Some(device) = device("the choice of operations on a GPU") else {
        return;
    };
    assert!(!scoped(Choice::Burn, || computes_on(&device)));
    assert!(!computes_on(&Device::flex()));
}
