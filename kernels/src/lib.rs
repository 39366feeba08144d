//! Training kernels, forward and backward.
//!
//! [`ops`] has one function per layer, on Burn's tensors and on any device: [`policy`] says whether
//! the kernels for the [`cpu`], those for GPUs, or Burn's own operations compute it.

#[cfg(feature = "burn")]
mod branches;
pub mod cpu;
mod error;
#[cfg(feature = "burn")]
pub mod gpu;
#[cfg(feature = "burn")]
pub mod ops;
#[cfg(feature = "burn")]
pub mod policy;

pub use error::KernelError;
