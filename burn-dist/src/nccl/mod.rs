//! Collectives on device memory through NVIDIA's NCCL, for ranks that each have a CUDA device of
//! their own.
//!
//! `backend::cuda::nccl` has the little of NCCL that is needed, as a trait, and implements it with
//! the real library; the tests do with host memory. `communicator` and `lane`, the thread of a
//! device, put around it what NCCL lacks: ranks that call different things get an error that names
//! both sides, every wait has a time-out, and what fails on one rank ends on all; `call` sees to
//! calls in which NCCL itself waits. `decide` finds out whether all ranks can. `tensors` brings
//! Burn's tensors there.

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

/// The version of the NCCL library that is found at run time, such as 2.27.3.
///
/// # Errors
/// If there is none, or the program is built without CUDA.
pub fn version() -> Result<String, NcclError> {
    Ok(nccl::version_words(nccl::version()?))
}
