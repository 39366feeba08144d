//! Distributed training for [Burn](https://burn.dev): ranks that find each other, collectives,
//! and a model wrapper that keeps replicas in step while backward still runs.
//!
//! Modules depend on those above them in this list, never on those below.

pub mod element;
mod reduce;
pub mod world;
pub mod rendezvous;
pub mod launch;
pub mod buffer;
pub mod transport;
pub mod collective;
pub mod group;
pub mod autograd;
pub mod bucket;
pub mod parallel;

mod error;

// pub use buffer::Buffer;
// pub use element::{DType, Element, ReduceOp};
// pub use error::Error;
// pub use group::{GroupOptions, Handle, ProcessGroup, TransportKind, shard};
