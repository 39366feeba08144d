//! Distributed training for [Burn](https://burn.dev): ranks that find each other, collectives,
//! and a model wrapper that keeps replicas in step while backward still runs.
//!
//! Modules depend on those above them in this list, never on those below.

// Shared memory is the one place that cannot do without, and allows it for itself.
#![deny(unsafe_code)]

pub mod autograd;
pub mod bucket;
pub mod buffer;
pub mod checkpoint;
pub mod collective;
pub mod element;
pub mod group;
pub mod launch;
pub mod parallel;
pub mod precision;
mod reduce;
pub mod rendezvous;
pub mod transport;
pub mod world;
mod zero;

mod error;

pub use buffer::Buffer;
pub use element::{DType, Element, ReduceOp};
pub use error::{CollectiveError, Error};
pub use group::{GroupOptions, Handle, ProcessGroup, TransportKind, shard};
