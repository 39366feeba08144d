//! What depends on cargo features: GPUs through CUDA and wgpu, and MPI.
//!
//! Each folder has an `absent` twin with the same functions and types, for programs that are built
//! without the feature. It gives nothing, an error, or a type that has no values. So nothing
//! outside this module asks for a feature.

pub(crate) mod cuda;
pub(crate) mod gpu;
#[cfg_attr(feature = "mpi", allow(unsafe_code))]
pub(crate) mod mpi;
pub(crate) mod wgpu;

use burn::tensor::Device;

/// Whether Burn tries kernels out and keeps the fastest, so that ranks may run different ones.
pub(crate) const AUTOTUNES: bool = cfg!(feature = "autotune");

/// What a machine offers of one kind of device.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(dead_code, reason = "some only come up with some features")]
pub(crate) enum Found {
    /// The program is built without it.
    NotBuilt,
    /// None, and why.
    Nothing(String),
    /// So many GPUs.
    Gpus(usize),
    /// Software in place of a GPU.
    Software,
}

/// The kind of a device that belongs to no backend of this crate.
const OTHER: &str = "another device";

/// The kind of a device, as configurations call it. Devices of two kinds, which run other kernels,
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

/// Whether this crate runs on `device`: Burn may have backends that it was not built with.
pub(crate) fn is_built_for(device: &Device) -> bool {
    kind(device) != OTHER
}

/// Whether tensors of `device` are in memory that the processor reads at no cost.
pub fn is_host(device: &Device) -> bool {
    device.clone().inner() == Device::flex()
}

/// Declares an operation that this crate adds to Burn's backends: a trait that each of them, and
/// `Autodiff` around them, implements.
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

/// Implements an [`operation`] alike for every backend that this program is built with, without
/// autodiff.
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
