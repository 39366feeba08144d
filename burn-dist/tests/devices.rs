//! Runs the tests of `Parallel` on a GPU: wgpu's, in software without a real one, or the device in
//! `BURN_DIST_TEST_DEVICE`; docs/gpu.md.
#![cfg(any(feature = "wgpu", feature = "cuda"))]

use std::sync::OnceLock;

use burn::tensor::Device;
use burn_dist::device::DeviceChoice;
use burn_dist::world::World;

#[path = "parallel/models.rs"]
mod models;

/// A module, so that the names differ from those of the tests in host memory.
#[path = "parallel"]
mod device {
    pub mod buffers;
    pub mod checkpoint;
    pub mod ema;
    pub mod gradients;
    pub mod hybrid;
    pub mod rank_sums;
    pub mod ranks;
    pub mod whole;
    pub mod zero;
}

use device::zero;

/// Steps of a training that is compared with another; few, because software takes long for a
/// kernel.
const STEPS: u64 = 4;

/// Returns the device in `BURN_DIST_TEST_DEVICE`.
fn asked() -> Option<DeviceChoice> {
    let name = std::env::var("BURN_DIST_TEST_DEVICE").ok()?;
    Some(name.parse().unwrap())
}

/// Returns the tolerance for sums in another order, relative to the largest value. CUDA's tensor
/// cores compute products of f32 in TensorFloat-32, which has eleven bits.
fn rounding() -> f32 {
    match asked() {
        Some(DeviceChoice::Cuda) => 2e-3,
        _ => 1e-5,
    }
}

/// Returns the device of all models; prints a message if it is the CPU.
fn device() -> Device {
    static DEVICE: OnceLock<Device> = OnceLock::new();
    let choose = || match World::single().choose_device(asked().unwrap_or(DeviceChoice::Wgpu)) {
        Ok(chosen) => chosen.device,
        Err(error) if asked().is_some() => panic!("{error}"),
        Err(error) => {
            eprintln!("SKIPPED: training on wgpu: {error}");
            Device::flex()
        }
    };
    DEVICE.get_or_init(choose).clone()
}
