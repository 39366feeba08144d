//! Collectives on device memory through NVIDIA's NCCL, for ranks that each have a CUDA device of
//! their own.
//!
//! `api` is the little of NCCL that is needed, as a trait: `library` implements it with the real
//! library, found at run time, and the tests with host memory. `communicator` and `lane`, the thread of
//! a device, put around it what NCCL lacks: ranks that call different things get an error that names both sides,
//! every wait has a time-out, and what fails on one rank ends on all; `call` sees to calls in which NCCL itself
//! waits. `decide` finds out whether all ranks can. `tensors` brings Burn's tensors there.

// Without CUDA only the tests use them, which is how they are checked on every machine.
#[cfg_attr(not(feature = "cuda"), allow(dead_code))]
mod api;
#[cfg_attr(not(feature = "cuda"), allow(dead_code))]
mod call;
#[cfg_attr(not(feature = "cuda"), allow(dead_code))]
mod communicator;
#[cfg_attr(not(feature = "cuda"), allow(dead_code))]
mod decide;
mod error;
#[cfg_attr(not(feature = "cuda"), allow(dead_code))]
mod lane;
#[cfg(feature = "cuda")]
#[allow(unsafe_code)]
mod library;
#[cfg(feature = "cuda")]
#[allow(unsafe_code)]
mod tensors;

#[cfg(test)]
mod fake;
#[cfg(test)]
mod tests;

pub use error::NcclError;

#[cfg(feature = "cuda")]
pub use tensors::self_test;
#[cfg(feature = "cuda")]
pub(crate) use tensors::{OwnLane, connect};

/// The version of the NCCL library that is found at run time, such as 2.27.3.
///
/// # Errors
/// If there is none, or the program is built without CUDA.
pub fn version() -> Result<String, NcclError> {
    #[cfg(feature = "cuda")]
    return Ok(error::version_words(library::Library::load()?.version()?));
    #[cfg(not(feature = "cuda"))]
    Err(NcclError::NoLibrary {
        reason: "this program is built without cuda".to_owned(),
    })
}
