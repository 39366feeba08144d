//! `Parallel` on a GPU: the same tests as in host memory. The GPU is wgpu's, in software where there is
//! no other; docs/gpu.md.
#![cfg(feature = "wgpu")]

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
    pub mod hybrid;
    pub mod ranks;
    pub mod whole;
    pub mod zero;
}

use device::zero;

/// Steps of a training that is compared with another: few, since software takes long for a kernel.
const STEPS: u64 = 4;

/// The device of all models; says so if it is the processor.
fn device() -> Device {
    static DEVICE: OnceLock<Device> = OnceLock::new();
    let choose = || match World::single().choose_device(DeviceChoice::Wgpu) {
        Ok(chosen) => chosen.device,
        Err(error) => {
            eprintln!("SKIPPED: training on wgpu: {error}");
            Device::flex()
        }
    };
    DEVICE.get_or_init(choose).clone()
}
