//! The kernels as differentiable operations on tensors of Flex, Burn's CPU backend.
//!
//! Each operation is one node of Burn's graph with its own backward pass. Images are channels last,
//! \[batch, height, width, channels\]; all values are f32. Contiguous inputs are read in place, and
//! results use recycled memory (`memory`).

mod activation;
mod attention;
mod batch_norm;
mod conv;
mod cross_entropy;
mod dropout;
mod epilogue;
mod layer_norm;
mod linear;
mod max_pool;
mod mean;
mod memory;
mod operation;
mod tensor;
mod transpose;

pub use activation::{add, gelu};
pub use attention::attention;
pub use batch_norm::{BatchMoments, batch_norm, batch_norm_train};
pub use conv::{ConvOptions, conv2d};
pub use cross_entropy::cross_entropy;
pub use dropout::dropout;
pub use layer_norm::layer_norm;
pub use linear::{LinearOptions, linear};
pub use max_pool::{PoolOptions, max_pool2d};
pub use mean::mean_of_pixels;
pub use transpose::{channels_first, channels_last};

use std::sync::OnceLock;

use super::Kernels;
use crate::KernelError;

/// Returns the kernels shared by all operations of this process.
///
/// [`Kernels::new`] chooses their instruction set.
///
/// # Errors
///
/// Returns the errors of [`Kernels::new`].
pub fn shared() -> Result<&'static Kernels, KernelError> {
    static KERNELS: OnceLock<Result<Kernels, KernelError>> = OnceLock::new();
    KERNELS
        .get_or_init(Kernels::new)
        .as_ref()
        .map_err(Clone::clone)
}
