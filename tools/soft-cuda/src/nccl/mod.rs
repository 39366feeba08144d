//! NCCL between processes of one host, so that programs for several GPUs can be tested without any:
//! the driver's library, under the name `libnccl.so.2`.
//!
//! The ranks of a communicator meet in a file in shared memory (`shared`), which is unlinked as
//! soon as all have come. A thread of each rank does the enqueued work in order (`communicator`,
//! `collective`), so that calls return before their work is done, as in NCCL. Sums are in the order
//! of ranks (`reduce`), so that all ranks have the same bits. `interface` has the functions for
//! programs.

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
