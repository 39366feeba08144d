//! GPU kernels for operations that Burn computes in many kernels. Layers are nodes of Burn's graph
//! with their own backward pass; optimizer steps and norms are outside of it.
//!
//! Tensors are Burn's, of any float type that the device has. A program without the feature `wgpu`
//! or `cuda` has no kernels: no device is a GPU.

mod options;

#[cfg(not(feature = "gpu"))]
mod absent;
#[cfg(feature = "gpu")]
#[path = "cube.rs"]
mod cube;

#[cfg(not(feature = "gpu"))]
pub use absent::*;
#[cfg(feature = "gpu")]
pub use cube::*;
pub use options::{ConvOptions, ImageFacts, PoolOptions, Sample, ThenNorm};

/// Whether tile sizes are tuned for every shape.
#[cfg(feature = "gpu")]
const TUNES: bool = cfg!(feature = "tune");
