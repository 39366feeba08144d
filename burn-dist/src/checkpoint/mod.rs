//! The state of a training on disk: every rank writes its share, one rename makes it visible.
//!
//! A checkpoint is a folder `step-NNNNNNNNNN` with one safetensors file per rank, and
//! `manifest.json`, which has the BLAKE3 checksum of each; `manifest.blake3` has that of the
//! manifest, as `b3sum` writes it. The ranks write into a hidden folder beside it. When all files
//! are complete on disk, rank 0 gives the folder its name: a folder of that name is always whole.
//!
//! The ranks share a file system, and find out through it who is done: nothing is sent, so training
//! and its collectives go on meanwhile.

mod error;
mod folder;
mod manifest;
mod shard;
mod source;
mod writer;

pub use error::CheckpointError;
pub use folder::{Found, list, newest_good, set_aside};
pub use manifest::{FileEntry, Manifest};
pub use source::Source;
pub use writer::{Job, Writer, Written};
