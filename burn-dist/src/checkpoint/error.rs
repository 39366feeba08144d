//! Errors of checkpoints.

use std::io;
use std::path::{Path, PathBuf};

/// An error in writing or reading a checkpoint.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum CheckpointError {
    /// The system refused an operation.
    #[error("cannot {action} {}: {source}", path.display())]
    Io {
        /// The operation.
        action: &'static str,
        /// The file or folder.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// A file of a checkpoint is damaged.
    #[error("{} is damaged: {reason}. Continue from another checkpoint", path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// The damage.
        reason: String,
    },
    /// The folder is not a checkpoint.
    #[error("{} is not a checkpoint: manifest.json is missing", .0.display())]
    NotACheckpoint(PathBuf),
    /// The checkpoint has an unsupported version.
    #[error(
        "{} has checkpoint format version {found}; this program reads version {known}",
        path.display()
    )]
    Version {
        /// The manifest.
        path: PathBuf,
        /// Its version.
        found: u32,
        /// The supported version.
        known: u32,
    },
    /// The values could not be read from the device.
    #[error(transparent)]
    State(#[from] crate::parallel::ParallelError),
    /// The values could not be encoded.
    #[error("cannot write {}: {reason}", path.display())]
    Encode {
        /// The file.
        path: PathBuf,
        /// The reason.
        reason: String,
    },
    /// The state contains NaN or infinity, so nothing was written.
    #[error(
        "`{name}` is {value} on rank {rank} after step {step}: training diverged. No checkpoint is \
         written"
    )]
    NotFinite {
        /// The rank whose share contains the value.
        rank: usize,
        /// Steps done.
        step: u64,
        /// Name of the tensor in the state.
        name: String,
        /// The value: NaN or infinity.
        value: f64,
    },
    /// Another rank did not write its share.
    #[error("rank {rank} did not write its shard of {}: {reason}", path.display())]
    Rank {
        /// The rank.
        rank: usize,
        /// The checkpoint.
        path: PathBuf,
        /// Its message, or that it sent none.
        reason: String,
    },
    /// Another rank found a damaged checkpoint.
    #[error("rank {rank} could not verify {}: {reason}", path.display())]
    NotGood {
        /// The rank.
        rank: usize,
        /// The checkpoint.
        path: PathBuf,
        /// The damage.
        reason: String,
    },
    /// The previous checkpoint takes too long: the other ranks would give this one up.
    #[error(
        "no checkpoint after step {step}: the previous one is still being written after {seconds} \
         s more"
    )]
    Behind {
        /// Steps done.
        step: u64,
        /// Time that this rank waited, in seconds.
        seconds: u64,
    },
    /// The folder must not be written to any more.
    #[error("cannot write checkpoints to {}: {reason}", folder.display())]
    Refused {
        /// The folder of checkpoints.
        folder: PathBuf,
        /// The reason.
        reason: String,
    },
    /// The writer thread is gone.
    #[error("the checkpoint writer thread ended unexpectedly")]
    Gone,
}

crate::debug_is_display!(CheckpointError);

impl CheckpointError {
    pub(super) fn io(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_owned();
        move |source| Self::Io {
            action,
            path,
            source,
        }
    }

    pub(super) fn damaged(path: &Path, reason: impl Into<String>) -> Self {
        Self::Damaged {
            path: path.to_owned(),
            reason: reason.into(),
        }
    }
}
