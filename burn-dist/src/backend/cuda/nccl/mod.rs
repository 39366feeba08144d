//! NCCL as a trait, and the real library behind it.

mod api;
mod error;

#[cfg(not(feature = "cuda"))]
mod absent;
#[cfg(feature = "cuda")]
#[allow(unsafe_code)]
mod library;
#[cfg(feature = "cuda")]
#[allow(unsafe_code)]
mod tensors;

pub(crate) use api::{Nccl, UniqueId};
pub use error::NcclError;
pub(crate) use error::version_words;

#[cfg(not(feature = "cuda"))]
pub(crate) use absent::{Library, Memory, memory, tensor, version};
#[cfg(feature = "cuda")]
pub(crate) use tensors::{Library, Memory, memory, tensor, version};

/// The reason why a build without CUDA has no NCCL.
pub(crate) const ABSENT: Option<&str> = match cfg!(feature = "cuda") {
    true => None,
    false => Some("this program was built without cuda"),
};
