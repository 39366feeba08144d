//! Finds the devices of this machine.

use burn::tensor::Device;

use super::choose::{Pick, words_of};
use crate::backend::{Availability, cuda, gpu, wgpu};

/// The chosen device.
pub(super) fn device(pick: &Pick) -> Device {
    if *pick != Pick::Cpu {
        gpu::few_streams();
    }
    let device = match pick {
        Pick::Cpu => None,
        Pick::Cuda(index) => cuda::device(*index),
        Pick::Wgpu(index) => wgpu::gpus().into_iter().nth(*index),
        Pick::WgpuSoftware => wgpu::software(),
    };
    device.unwrap_or_else(Device::flex)
}

/// See [`super::list`].
pub(super) fn list() -> Vec<String> {
    let mut lines = vec!["cpu: the CPU".to_owned()];
    let mut named = |kind: &str, found: Availability, devices: Vec<Device>| {
        if devices.is_empty() {
            lines.push(format!("{kind}: none, {}", words_of(&found)));
        }
        for (index, device) in devices.iter().enumerate() {
            lines.push(format!("{kind} {index}: {}", name(device)));
        }
    };
    let of_cuda = cuda::found();
    let devices = match of_cuda {
        Availability::Gpus(count) => (0..count).filter_map(cuda::device).collect(),
        _ => Vec::new(),
    };
    named("cuda", of_cuda, devices);
    let devices = wgpu::gpus().into_iter().chain(wgpu::software()).collect();
    named("wgpu", wgpu::found(), devices);
    lines
}

/// The driver's name of a device, or Burn's, such as `Flex(Cpu)`.
pub(super) fn name(device: &Device) -> String {
    if let Some(name) = gpu::name(device) {
        return name;
    }
    let name = format!("{device:?}");
    let inner = name
        .strip_prefix("Device<")
        .and_then(|name| name.strip_suffix('>'));
    inner.unwrap_or(&name).to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_are_named_without_ornament() {
        let name = name(&Device::flex());
        assert!(name.starts_with("Flex"), "{name}");
    }
}
