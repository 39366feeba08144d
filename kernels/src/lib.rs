//! Training kernels for the CPU, forward and backward, over plain slices of f32.
//!
//! Everything starts at [`Kernels`], which holds the functions of one instruction set and the
//! scratch memory. Images are NHWC (channels last), weights of convolutions
//! `[out, in, height, width]` as in Burn and PyTorch. Work is spread over the rayon pool that a call
//! runs in; how it is divided depends on the shape alone, so that results are the same bits for any
//! number of threads (they differ between instruction sets, by rounding).

mod conv;
mod error;
mod isa;
mod kernels;
mod matmul;
mod parallel;
mod simd;
mod table;
mod vector;
mod workspace;

pub use conv::{Conv2d, ConvMethod};
pub use error::KernelError;
pub use isa::{ISA_VARIABLE, Isa};
pub use kernels::Kernels;
pub use matmul::Matmul;
