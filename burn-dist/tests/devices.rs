//! `Parallel` on a GPU: the same tests as in host memory. The GPU is wgpu's, in software if there
//! is no other, or the one that `BURN_DIST_TEST_DEVICE` names (docs/internals/soft-cuda.md).
#![cfg(any(feature = "wgpu", feature = "cuda"))]

use std::sync::OnceLock;

use burn::tensor::Device;
use burn_dist::device::DeviceChoice;
use burn_dist::world::World;

#[path = "parallel/models.rs"]
mod models;

/// With names that tell them from those of host memory.
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

/// Steps of a training that is compared with another: few, since software takes long for a kernel.
const STEPS: u64 = 4;

/// What `BURN_DIST_TEST_DEVICE` names.
fn asked() -> Option<DeviceChoice> {
    let name = std::env::var("BURN_DIST_TEST_DEVICE").ok()?;
    Some(name.parse().unwrap())
}

/// How far sums in another order may be off, relative to the largest value: CUDA's tensor cores
/// take products of f32 in TensorFloat-32, which has eleven bits.
fn rounding() -> f32 {
    match asked() {
        Some(DeviceChoice::Cuda) => 2e-3,
        _ => 1e-5,
    }
}

/// The device of all models; says so if it is the processor.
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
