//! NVIDIA GPUs through CUDA, and NCCL.

#[cfg(not(feature = "cuda"))]
mod absent;
#[cfg(feature = "kernel-cache")]
mod choices;
#[cfg(feature = "cuda")]
mod compiler;
#[cfg(feature = "cuda")]
#[allow(unsafe_code)]
mod driver;
pub(crate) mod nccl;

/// Whether this build includes CUDA.
pub(crate) const BUILT: bool = cfg!(feature = "cuda");

#[cfg(not(feature = "cuda"))]
pub(crate) use absent::{device, found, index, memory, unique_name};
#[cfg(feature = "cuda")]
pub(crate) use driver::{device, found, index, memory, unique_name};
