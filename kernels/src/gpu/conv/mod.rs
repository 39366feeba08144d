//! Convolutions in f16 and bf16 on NVIDIA's tensor cores, with their gradients, as implicit products of
//! matrices: nothing but images, weights and results is written to memory.
//!
//! Chetlur et al. 2014, <https://arxiv.org/abs/1410.0759>, describe the method; CUTLASS's `conv` (its
//! "optimized" iterators for two-dimensional convolutions) is the reference. What Burn has instead keeps one
//! stage of 64 by 64 at most in shared memory, and computes the gradient of a small weight on few processors.

mod bias;
mod geometry;
mod launch;
mod operation;
mod plan;
mod product;
mod shape;
mod slide;
mod tile;
mod tune;
mod weights;
mod widen;

#[cfg(all(test, feature = "cuda"))]
mod tests;

pub use operation::{conv2d, convolves_on};

/// How a window slides.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConvOptions {
    /// Step of the window down and to the right.
    pub stride: [usize; 2],
    /// Zeros above and below, and on the left and on the right.
    pub padding: [usize; 2],
}
