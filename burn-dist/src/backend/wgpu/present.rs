//! GPUs that wgpu finds.

use burn::tensor::{Device, DeviceKind, DeviceType};

use crate::backend::Availability;

/// The GPUs that wgpu can use.
pub(crate) fn found() -> Availability {
    match (gpus().len(), software()) {
        (0, None) => {
            let reason =
                "wgpu finds no adapter (on Linux it needs libvulkan.so.1 and a GPU driver)";
            Availability::Nothing(reason.to_owned())
        }
        (0, Some(_)) => Availability::Software,
        (count, _) => Availability::Gpus(count),
    }
}

/// All adapters of wgpu.
fn adapters() -> Vec<Device> {
    Device::enumerate(DeviceType::Wgpu).into_vec()
}

/// The GPUs, discrete ones first.
pub(crate) fn gpus() -> Vec<Device> {
    use DeviceKind::{DiscreteGpu, IntegratedGpu, VirtualGpu};
    let adapters = adapters();
    [DiscreteGpu, IntegratedGpu, VirtualGpu]
        .iter()
        .flat_map(|kind| (0..adapters.len()).map(|index| Device::wgpu(kind(index))))
        .filter(|device| adapters.contains(device))
        .collect()
}

/// A software renderer in place of a GPU.
pub(crate) fn software() -> Option<Device> {
    let device = Device::wgpu(DeviceKind::Cpu);
    adapters().contains(&device).then_some(device)
}
