//! NCCL between processes of one host, so that programs for several GPUs can be tested without any:
//! the library of the driver, under the name `libnccl.so.2`.
//!
//! The ranks of a communicator meet in a file in shared memory (`shared`), which loses its name as
//! soon as all are there. A thread of each rank does the enqueued work, one item after the other
//! (`communicator`, `collective`), so that calls return before they are done, as with NCCL. Numbers
//! are added up in the order of ranks (`reduce`), so that all ranks have the same bits. `interface`
//! is the C interface for programs.

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
