//! Runs kernels: a block at a time per thread, a warp at a time, 32 lanes in lockstep.
//!
//! To be fast enough for tests that train, each instruction is translated once into the numbers of
//! its registers and a function that works on a register of all lanes at once (`lanes`).

mod atomic;
mod bits;
mod block;
mod compare;
mod convert;
mod copy;
mod counts;
mod fault;
mod float;
mod formats;
mod grid;
mod integer;
mod kernel;
mod lanes;
mod load_store;
mod matrix;
mod memory;
mod mma;
mod moves;
mod operation;
mod shuffle;
#[cfg(test)]
mod tests;
mod tile;
mod warp;
mod watch;
mod wgmma;
mod wmma;

pub use counts::{Count, Counts, Unit};
pub use fault::{Failure, Fault, FaultKind, Other};
pub use grid::{Launch, LaunchError};
pub use kernel::Kernel;
pub use memory::{Buffer, Range};
