//! NCCL between processes of one host, so that programs for several GPUs can be tested without any:
//! the library of the driver, under the name `libnccl.so.2`.
//!
//! The ranks of a communicator meet in a file in shared memory (`shared`), which has no name any
//! more as soon as all are there. A thread of each rank does what is enqueued, one after the other
//! (`communicator`, `collective`), so that calls return before they are done, as NCCL's do. Numbers
//! are added up in the order of ranks (`reduce`), so that all ranks have the same bits. `interface`
//! is what programs call.

mod collective;
mod communicator;
mod error;
mod interface;
mod reduce;
mod shared;
#[cfg(test)]
mod tests;

pub use interface::*;
pub use shared::Id;
