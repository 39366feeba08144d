//! Training kernels for the CPU, forward and backward, over plain slices of f32.
//!
//! Everything starts at [`Kernels`], which holds the functions of one instruction set and the
//! scratch memory. Images are NHWC (channels last), weights of convolutions
//! `[out, in, height, width]` as in Burn and PyTorch. Work is spread over the rayon pool that a call
//! runs in; how it is divided depends on the shape alone, so that results are the same bits for any
//! number of threads (they differ between instruction sets, by rounding).
//!
//! The module `burn` makes operations on Burn's tensors of them; the module `gpu` has what Burn lacks on
//! GPUs.

mod attention;
mod batch_norm;
mod bf16;
#[cfg(feature = "burn")]
pub mod burn;
mod conv;
mod cross_entropy;
mod elementwise;
mod epilogue;
mod error;
#[cfg(feature = "gpu")]
pub mod gpu;
mod isa;
mod kernels;
mod layer_norm;
mod matmul;
mod max_pool;
mod pages;
mod parallel;
mod simd;
mod table;
mod vector;
mod workspace;

pub use attention::Attention;
pub use batch_norm::{BatchNorm, BatchNormGradients, Moments};
pub use bf16::Input;
pub use conv::{Conv2d, ConvMethod};
pub use elementwise::Rows;
pub use epilogue::Epilogue;
pub use error::KernelError;
pub use isa::{ISA_VARIABLE, Isa};
pub use kernels::Kernels;
pub use matmul::Matmul;
pub use max_pool::MaxPool2d;
