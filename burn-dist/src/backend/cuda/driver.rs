//! The CUDA devices that the driver shows this process, numbered from 0.

use burn::backend::DispatchDevice;
use burn::tensor::{Device, DeviceType};
use cudarc::driver::{result, sys};

use super::compiler;
use crate::backend::Availability;

/// The CUDA devices, if kernels can be compiled for them.
pub(crate) fn found() -> Availability {
    // SAFETY: only tries to open the library by its usual names.
    if !unsafe { sys::is_culib_present() } {
        let reason = "no NVIDIA driver (libcuda.so.1) was found";
        return Availability::Nothing(reason.to_owned());
    }
    let count = Device::enumerate(DeviceType::Cuda).into_vec().len();
    if count == 0 {
        let hidden = std::env::var("CUDA_VISIBLE_DEVICES");
        let hidden = hidden.map_or_else(
            |_| String::new(),
            |list| format!(" (CUDA_VISIBLE_DEVICES={list})"),
        );
        return Availability::Nothing(format!("the NVIDIA driver reports no device{hidden}"));
    }
    match compiler::find() {
        Ok(()) => Availability::Gpus(count),
        Err(reason) => Availability::Nothing(reason),
    }
}

/// The device with this index.
pub(crate) fn device(index: usize) -> Option<Device> {
    Some(Device::cuda(index))
}

/// The index of a CUDA device.
pub(crate) fn index(device: &Device) -> Option<usize> {
    match device.clone().inner().as_dispatch() {
        DispatchDevice::Cube(cubecl::Device::Cuda(device)) => Some(device.index),
        _ => None,
    }
}

/// A name that no other CUDA device has, on any host. Parts of a divided device have their own.
/// `None` if the device does not exist.
pub(crate) fn unique_name(index: usize) -> Option<String> {
    result::init().ok()?;
    let device = result::device::get(i32::try_from(index).ok()?).ok()?;
    let mut uuid = sys::CUuuid { bytes: [0; 16] };
    // The first version of this call gives parts the name of the whole. SAFETY: the driver returned
    // this device, and the call writes 16 bytes.
    let code = unsafe { sys::cuDeviceGetUuid_v2(&mut uuid, device) };
    code.result().ok()?;
    let digits = uuid.bytes.iter().map(|byte| format!("{:02x}", *byte as u8));
    Some(digits.collect())
}

/// The model of a device and the CUDA version of its driver. `None` if the device does not exist.
#[cfg(feature = "kernel-cache")]
pub(super) fn model(index: usize) -> Option<String> {
    result::init().ok()?;
    let device = result::device::get(i32::try_from(index).ok()?).ok()?;
    let name = result::device::get_name(device).ok()?;
    let mut version = 0;
    // SAFETY: the call writes one number.
    let code = unsafe { sys::cuDriverGetVersion(&mut version) };
    code.result().ok()?;
    Some(format!("{name}, driver {version}"))
}

/// Bytes of a device's memory; `None` if the device does not exist.
pub(crate) fn memory(index: usize) -> Option<u64> {
    // SAFETY: only tries to open the library by its usual names.
    if !unsafe { sys::is_culib_present() } {
        return None;
    }
    result::init().ok()?;
    let device = result::device::get(i32::try_from(index).ok()?).ok()?;
    // SAFETY: the driver returned this device.
    let total = unsafe { result::device::total_mem(device) }.ok()?;
    u64::try_from(total).ok()
}
