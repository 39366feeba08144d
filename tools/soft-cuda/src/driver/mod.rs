//! The C interface of the driver (<https://docs.nvidia.com/cuda/cuda-driver-api/>): the functions
//! that cudarc calls and NVRTC looks up. Handles are numbers that are looked up, never pointers
//! that are dereferenced.
#![allow(non_snake_case)] // The names are the driver's.
#![allow(clippy::missing_safety_doc)] // For each, pointers are null or what the driver's manual says.

mod call;
pub(crate) mod context;
mod copy;
mod device;
mod error;
mod event;
pub(crate) mod handles;
mod launch;
mod memory;
mod module;
pub(crate) mod pending;
mod priority;
mod queue;
pub(crate) mod stream;
pub(crate) mod table;
#[cfg(test)]
mod tests;
mod unsupported;

pub use call::{Code, Out};
pub use context::*;
pub use copy::*;
pub use device::*;
pub use error::*;
pub use event::*;
pub use handles::Handle;
pub use launch::*;
pub use memory::*;
pub use module::*;
pub use stream::*;
pub use unsupported::*;
