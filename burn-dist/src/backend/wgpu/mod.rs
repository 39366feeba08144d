//! GPUs through Vulkan, Metal or DirectX.

#[cfg(not(feature = "wgpu"))]
mod absent;
#[cfg(feature = "wgpu")]
mod present;

#[cfg(not(feature = "wgpu"))]
pub(crate) use absent::{found, gpus, software};
#[cfg(feature = "wgpu")]
pub(crate) use present::{found, gpus, software};

/// Whether this build includes wgpu.
pub(crate) const BUILT: bool = cfg!(feature = "wgpu");
