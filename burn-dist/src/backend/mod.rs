//! Everything that depends on cargo features: GPUs through CUDA and wgpu, and MPI.
//!
//! Each folder has an `absent` twin with the same functions and types for builds without the
//! feature. It returns nothing, an error, or a type without values. So no code outside this module
//! asks for a feature.

pub(crate) mod cuda;
pub(crate) mod gpu;
#[cfg_attr(feature = "mpi", allow(unsafe_code))]
pub(crate) mod mpi;
pub(crate) mod wgpu;

use burn::tensor::Device;

/// Whether Burn tunes kernels at run time, so that ranks may run different ones.
pub(crate) const AUTOTUNES: bool = cfg!(feature = "autotune");

/// The devices of one kind on this machine.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(dead_code, reason = "some only come up with some features")]
pub(crate) enum Availability {
    /// The build lacks this backend.
    NotBuilt,
    /// No device, and the reason.
    Nothing(String),
    /// The number of GPUs.
    Gpus(usize),
    /// Only a software renderer in place of a GPU.
    Software,
}

/// The kind of a device without a backend in this crate.
const OTHER: &str = "another device";

/// The kind of a device, as in configurations. Devices of different kinds run different kernels and
/// round differently.
pub(crate) fn kind(device: &Device) -> &'static str {
    if is_host(device) {
        "cpu"
    } else if cuda::index(device).is_some() {
        "cuda"
    } else if wgpu::BUILT {
        "wgpu"
    } else {
        OTHER
    }
}

/// Whether this crate supports `device`: Burn may have more backends.
pub(crate) fn is_built_for(device: &Device) -> bool {
    kind(device) != OTHER
}

/// Whether the CPU reads tensors of `device` without a copy.
pub fn is_host(device: &Device) -> bool {
    device.clone().inner() == Device::flex()
}

/// Declares an operation that this crate adds to Burn's backends: a trait that each backend, and
/// `Autodiff` around it, implements.
macro_rules! operation {
    ($($declaration:tt)*) => {
        #[burn::backend::backend_extension(
            Flex,
            Cube: cfg(any(feature = "wgpu", feature = "cuda")),
            Autodiff
        )]
        $($declaration)*
    };
}

/// Implements an [`operation`] alike for every backend of this build, without autodiff.
macro_rules! implement {
    ($operation:ident { $($functions:tt)* }) => {
        impl $operation for burn::backend::Flex {
            $($functions)*
        }

        #[cfg(any(feature = "wgpu", feature = "cuda"))]
        impl $operation for burn::backend::Cube {
            $($functions)*
        }
    };
}

pub(crate) use {implement, operation};
