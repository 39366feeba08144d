//! Code shared by CUDA and wgpu: the kernels of the crate `kernels`, and Burn's GPU runtime.

#[cfg(not(any(feature = "wgpu", feature = "cuda")))]
mod absent;
#[cfg(any(feature = "wgpu", feature = "cuda"))]
mod present;

#[cfg(not(any(feature = "wgpu", feature = "cuda")))]
pub(crate) use absent::{AdamStep, Kernels, SgdStep, few_streams, name};
#[cfg(any(feature = "wgpu", feature = "cuda"))]
pub(crate) use present::{AdamStep, Kernels, SgdStep, few_streams, name};
