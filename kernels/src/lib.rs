//! Training kernels for Burn, forward and backward, on CPUs and GPUs.
//!
//! [`ops`] has one function per layer, on Burn's tensors and on any device. [`policy`] decides
//! whether the kernels for the [`cpu`], those for GPUs, or Burn's own operations compute it.
//!
//! ```
//! # #[cfg(feature = "burn")] {
//! use burn::tensor::{Device, Tensor};
//! use kernels::ops::{ConvOptions, conv2d};
//!
//! let device = Device::flex();
//! let (images, weight) = (Tensor::ones([1, 3, 8, 8], &device), Tensor::ones([16, 3, 3, 3], &device));
//! let options = ConvOptions { padding: [1, 1], relu: true, ..ConvOptions::default() };
//! assert_eq!(conv2d(images, weight, None, None, options).dims(), [1, 16, 8, 8]);
//! # }
//! ```
//!
//! | module | contents |
//! |---|---|
//! | [`ops`] | layers: convolution, linear, attention, normalization, pooling, loss, dropout |
//! | [`policy`] | the choice between these kernels and Burn's |
//! | [`cpu`] | vector code for slices and for Burn's CPU backend |
//! | [`gpu`] | CubeCL kernels for CUDA and wgpu, and fused optimizer steps |

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
