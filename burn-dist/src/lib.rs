//! Distributed training for [Burn](https://burn.dev): ranks that find each other, collectives,
//! and a model wrapper that keeps replicas in step while backward still runs.

// Shared memory, MPI, NCCL, the CUDA driver and closing a file with a check are the places that
// cannot do without, and allow it for themselves.
#![deny(unsafe_code)]

pub mod autograd;
mod backend;
pub mod bucket;
pub mod buffer;
pub mod checkpoint;
pub mod collective;
mod compression;
pub mod contained;
mod deadline;
pub mod device;
pub mod element;
pub mod files;
mod flat;
mod fused;
pub mod group;
pub mod launch;
pub mod nccl;
mod open_files;
pub mod parallel;
pub mod precision;
mod process;
mod reduce;
pub mod rendezvous;
mod shard;
pub mod thread_limit;
pub mod transport;
mod watchdog;
pub mod wire;
pub mod world;
mod zero;

mod error;

pub use buffer::Buffer;
pub use compression::{Compression, UnknownCompression};
pub use element::{DType, Element, ReduceOp};
pub use error::{CollectiveError, Error};
pub use group::{
    Abort, Algorithm, Busy, Connecting, GroupOptions, Handle, ProcessGroup, TransportKind,
};
pub use open_files::TooFewOpenFiles;
pub use shard::{Cuts, shard};
