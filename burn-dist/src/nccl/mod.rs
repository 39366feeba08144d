//! Collectives on device memory through NVIDIA's NCCL, for ranks that each have their own CUDA
//! device.
//!
//! | file | task |
//! |---|---|
//! | `backend::cuda::nccl` | the part of NCCL that is needed, as a trait; the tests implement it in host memory |
//! | `communicator`, `lane` | what NCCL lacks: errors that name both sides, timeouts, failures that end all ranks |
//! | `call` | calls in which NCCL itself waits |
//! | `decide` | whether all ranks can use NCCL |
//! | `tensors` | the same for Burn's tensors |

mod call;
mod communicator;
mod decide;
mod lane;
mod tensors;

#[cfg(test)]
mod fake;
#[cfg(test)]
mod tests;

pub use crate::backend::cuda::nccl::NcclError;
pub use tensors::self_test;
pub(crate) use tensors::{OwnLane, connect};

use crate::backend::cuda::nccl;

/// The version of the NCCL library found at run time, such as 2.27.3.
///
/// # Errors
/// Fails if the library is missing or the build has no CUDA.
pub fn version() -> Result<String, NcclError> {
    Ok(nccl::version_words(nccl::version()?))
}
