//! Convolutions in f16 and bf16 on NVIDIA's tensor cores, with their gradients, as implicit products of
//! matrices: nothing but images, weights and results is written to memory.
//!
//! Chetlur et al. 2014, <https://arxiv.org/abs/1410.0759>, describe the method; CUTLASS's `conv` (its
//! "optimized" iterators for two-dimensional convolutions) is the reference. Burn's own (cubek-convolution 0.3.1)
//! keep one stage of at most 64 by 64 in shared memory, and make that smaller instead of dividing the long sum of a
//! weight's gradient.

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
