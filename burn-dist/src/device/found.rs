//! What devices this machine has.

use burn::tensor::Device;

use super::choose::{Found, Pick, words_of};

/// The CUDA devices that the driver shows this process.
pub(super) fn cuda() -> Found {
    #[cfg(not(feature = "cuda"))]
    return Found::NotBuilt;
    #[cfg(feature = "cuda")]
    cuda_here()
}

#[cfg(feature = "cuda")]
#[allow(unsafe_code)]
fn cuda_here() -> Found {
    // SAFETY: only tries to open the library by its usual names.
    if !unsafe { cudarc::driver::sys::is_culib_present() } {
        let reason = "no NVIDIA driver (libcuda.so.1) was found";
        return Found::Nothing(reason.to_owned());
    }
    let count = Device::enumerate(burn::tensor::DeviceType::Cuda)
        .into_vec()
        .len();
    if count == 0 {
        let hidden = std::env::var("CUDA_VISIBLE_DEVICES");
        let hidden = hidden.map_or_else(
            |_| String::new(),
            |list| format!(" (CUDA_VISIBLE_DEVICES={list})"),
        );
        return Found::Nothing(format!("the NVIDIA driver shows no device{hidden}"));
    }
    match compiler() {
        Ok(()) => Found::Gpus(count),
        Err(reason) => Found::Nothing(reason),
    }
}

/// Whether what compiles kernels at run time is here; its absence would otherwise be a panic in the
/// middle of the first kernel.
#[cfg(feature = "cuda-nvrtc")]
#[allow(unsafe_code)]
fn compiler() -> Result<(), String> {
    // First, for it also finds a library that is newer than the names that are known below.
    #[cfg(feature = "kernel-cache")]
    keep_kernels();
    // SAFETY: only tries to open the library by its usual names.
    if !unsafe { cudarc::nvrtc::sys::is_culib_present() } {
        return Err(
            "libnvrtc.so, which compiles kernels, was not found: install the CUDA toolkit or put it \
             into LD_LIBRARY_PATH (or use a program built with the feature cuda instead of \
             cuda-nvrtc)"
                .to_owned(),
        );
    }
    // As cubecl looks for them.
    let places: Vec<std::path::PathBuf> = match std::env::var_os("CUDA_PATH") {
        Some(path) => vec![path.into()],
        None => ["/usr/local/cuda", "/opt/cuda", "/usr"]
            .map(Into::into)
            .into(),
    };
    // The second is of another package than the first where NVIDIA's Python packages are all there is;
    // without it kernels that use tensor cores, and no others, could not be compiled.
    let headers = ["include/cuda_runtime.h", "include/crt/mma.h"];
    let holds_all = |place: &std::path::PathBuf| headers.iter().all(|h| place.join(h).exists());
    if places.iter().any(holds_all) {
        return Ok(());
    }
    let places: Vec<String> = places.iter().map(|p| p.display().to_string()).collect();
    Err(format!(
        "the CUDA headers were not found in {}: set CUDA_PATH to a folder that holds {}",
        places.join(", "),
        headers.join(" and ")
    ))
}

/// Has kernels compiled once, and not by every process.
#[cfg(feature = "kernel-cache")]
fn keep_kernels() {
    static ONCE: std::sync::Once = std::sync::Once::new();
    ONCE.call_once(|| match kernel_cache::keep() {
        Ok(folder) => tracing::info!("compiled kernels are kept in {}", folder.display()),
        Err(error @ kernel_cache::Error::Folder { .. }) => {
            tracing::warn!("kernels are compiled at every start: {error}");
        }
        Err(error) => tracing::info!("kernels are compiled at every start: {error}"),
    });
}

/// The LLVM inside the program lacks what NVIDIA's functions consist of, from exponentials on.
#[cfg(all(feature = "cuda", not(feature = "cuda-nvrtc")))]
fn compiler() -> Result<(), String> {
    // As cubecl looks for it.
    let places: Vec<std::path::PathBuf> = match std::env::var_os("CUDA_PATH") {
        Some(path) => vec![path.into()],
        None => ["/usr/local/cuda", "/opt/cuda", "/usr/lib/cuda", "/usr"]
            .map(Into::into)
            .into(),
    };
    let functions = "nvvm/libdevice/libdevice.10.bc";
    if places.iter().any(|place| place.join(functions).exists()) {
        return Ok(());
    }
    let places: Vec<String> = places.iter().map(|p| p.display().to_string()).collect();
    Err(format!(
        "{functions} of the CUDA toolkit, which kernels are linked with, was not found in {}: set CUDA_PATH \
         to a folder that holds it",
        places.join(", ")
    ))
}

/// What no other CUDA device is called, on this host and others; parts of one that is divided have names of
/// their own. `None` if there is no such device, or no CUDA in this program.
#[cfg_attr(feature = "cuda", allow(unsafe_code))]
pub(crate) fn unique_name(index: usize) -> Option<String> {
    #[cfg(not(feature = "cuda"))]
    {
        let _ = index;
        None
    }
    #[cfg(feature = "cuda")]
    {
        use cudarc::driver::{result, sys};
        result::init().ok()?;
        let device = result::device::get(i32::try_from(index).ok()?).ok()?;
        let mut uuid = sys::CUuuid { bytes: [0; 16] };
        // The first version of this call gives parts the name of the whole.
        // SAFETY: the driver gave this device, and writes 16 bytes.
        let code = unsafe { sys::cuDeviceGetUuid_v2(&mut uuid, device) };
        code.result().ok()?;
        let digits = uuid.bytes.iter().map(|byte| format!("{:02x}", *byte as u8));
        Some(digits.collect())
    }
}

/// The GPUs that wgpu can use.
pub(super) fn wgpu() -> Found {
    #[cfg(not(feature = "wgpu"))]
    return Found::NotBuilt;
    #[cfg(feature = "wgpu")]
    match (gpus().len(), software()) {
        (0, None) => {
            let reason = "wgpu finds no adapter (on Linux it needs libvulkan.so.1 and a driver)";
            Found::Nothing(reason.to_owned())
        }
        (0, Some(_)) => Found::Software,
        (count, _) => Found::Gpus(count),
    }
}

/// Everything that wgpu finds.
#[cfg(feature = "wgpu")]
fn adapters() -> Vec<Device> {
    Device::enumerate(burn::tensor::DeviceType::Wgpu).into_vec()
}

/// Discrete GPUs first.
#[cfg(feature = "wgpu")]
fn gpus() -> Vec<Device> {
    use burn::tensor::DeviceKind::{DiscreteGpu, IntegratedGpu, VirtualGpu};
    let adapters = adapters();
    [DiscreteGpu, IntegratedGpu, VirtualGpu]
        .iter()
        .flat_map(|kind| (0..adapters.len()).map(|index| Device::wgpu(kind(index))))
        .filter(|device| adapters.contains(device))
        .collect()
}

#[cfg(feature = "wgpu")]
fn software() -> Option<Device> {
    let device = Device::wgpu(burn::tensor::DeviceKind::Cpu);
    adapters().contains(&device).then_some(device)
}

/// The device that was picked.
pub(super) fn device(pick: &Pick) -> Device {
    match pick {
        #[cfg(feature = "cuda")]
        Pick::Cuda(index) => {
            few_streams();
            Device::cuda(*index)
        }
        #[cfg(feature = "wgpu")]
        Pick::Wgpu(index) => {
            few_streams();
            gpus().into_iter().nth(*index).unwrap_or_else(Device::flex)
        }
        #[cfg(feature = "wgpu")]
        Pick::WgpuSoftware => {
            few_streams();
            software().unwrap_or_else(Device::flex)
        }
        _ => Device::flex(),
    }
}

/// Every thread would have a stream and a memory pool of its own, which outlives it: one for all.
#[cfg(any(feature = "cuda", feature = "wgpu"))]
fn few_streams() {
    use cubecl_environment::stream::{StreamPolicy, set_policy};
    set_policy(StreamPolicy::Single);
}

/// See [`super::list`].
pub(super) fn list() -> Vec<String> {
    let mut lines = vec!["cpu: the processor".to_owned()];
    #[allow(unused_mut)]
    let mut named = |kind: &str, found: Found, devices: Vec<Device>| {
        if devices.is_empty() {
            lines.push(format!("{kind}: none, {}", words_of(&found)));
        }
        for (index, device) in devices.iter().enumerate() {
            lines.push(format!("{kind} {index}: {}", name(device)));
        }
    };
    #[cfg(feature = "cuda")]
    let devices = match cuda() {
        Found::Gpus(count) => (0..count).map(Device::cuda).collect(),
        _ => Vec::new(),
    };
    #[cfg(not(feature = "cuda"))]
    let devices = Vec::new();
    named("cuda", cuda(), devices);
    #[cfg(feature = "wgpu")]
    let devices = gpus().into_iter().chain(software()).collect();
    #[cfg(not(feature = "wgpu"))]
    let devices = Vec::new();
    named("wgpu", wgpu(), devices);
    lines
}

/// What the driver calls a device, or else Burn, such as `Flex(Cpu)`.
pub(super) fn name(device: &Device) -> String {
    #[cfg(any(feature = "cuda", feature = "wgpu"))]
    if let Some(identity) = device.identity() {
        return identity.name;
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
