//! Kernels for the CPU, forward and backward, over plain slices of f32.
//!
//! [`Kernels`] holds the functions of one instruction set and the scratch memory. Images are NHWC
//! (channels last), weights of convolutions `[out, in, height, width]` as in Burn and PyTorch. The
//! current rayon pool shares the work. The shape alone decides how sums are divided, so results are
//! bitwise equal for any number of threads. Between instruction sets they differ by rounding.

mod attention;
mod batch_norm;
mod bf16;
mod conv;
mod cross_entropy;
mod elementwise;
mod epilogue;
#[cfg(feature = "burn")]
pub mod flex;
mod grid;
mod isa;
mod kernels;
mod layer_norm;
mod linear;
mod matmul;
mod max_pool;
mod pages;
mod parallel;
mod simd;
mod table;
mod team;
mod vector;
mod workspace;

pub use attention::Attention;
pub use batch_norm::{BatchNorm, BatchNormGradients, Moments};
pub use bf16::{BF16_VARIABLE, Bf16Path};
pub use conv::{Conv2d, ConvMethod};
pub use elementwise::Rows;
pub use epilogue::Epilogue;
pub use isa::{ISA_VARIABLE, Isa};
pub use kernels::Kernels;
pub use linear::Input;
pub use matmul::Matmul;
pub use max_pool::MaxPool2d;
