//! What can go wrong with a checkpoint, and what to do about it.

use std::io;
use std::path::{Path, PathBuf};

/// A checkpoint could not be written or read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CheckpointError {
    /// The system refused an operation.
    #[error("cannot {action} {}: {source}", path.display())]
    Io {
        /// What was being done.
        action: &'static str,
        /// To which file or folder.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// A file of a checkpoint is not as it was written.
    #[error("{} is damaged: {reason}. Continue from another checkpoint", path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// The folder is not a checkpoint.
    #[error("{} is not a checkpoint: it has no manifest.json", .0.display())]
    NotACheckpoint(PathBuf),
    /// The checkpoint was written by a version that this one does not know.
    #[error("{} has version {found} of the format, this program reads version {known}", path.display())]
    Version {
        /// The manifest.
        path: PathBuf,
        /// Its version.
        found: u32,
        /// The version that is known.
        known: u32,
    },
    /// The values could not be read from the device.
    #[error(transparent)]
    State(#[from] crate::parallel::ParallelError),
    /// The values could not be put into a file.
    #[error("cannot write {}: {reason}", path.display())]
    Encode {
        /// The file.
        path: PathBuf,
        /// Why.
        reason: String,
    },
    /// A number in the state is none. Nobody could go on from it, so nothing was written.
    #[error(
        "`{name}` is {value} on rank {rank} after step {step}: training diverged before it was saved"
    )]
    NotFinite {
        /// The rank whose share it is in.
        rank: usize,
        /// Steps that were done.
        step: u64,
        /// The name of the tensor in the state.
        name: String,
        /// The value: infinite, or no number.
        value: f64,
    },
    /// Another rank did not write its share.
    #[error("rank {rank} did not write its share of {}: {reason}", path.display())]
    Rank {
        /// The rank.
        rank: usize,
        /// The checkpoint.
        path: PathBuf,
        /// What it said, or that it said nothing.
        reason: String,
    },
    /// Another rank has found that a checkpoint is not as it was written.
    #[error("rank {rank} found that {} is not good: {reason}", path.display())]
    NotGood {
        /// The rank.
        rank: usize,
        /// The checkpoint.
        path: PathBuf,
        /// What it found.
        reason: String,
    },
    /// The one before it is still being written, for so long that the other ranks would have given
    /// this one up.
    #[error(
        "the state after step {step} is not saved: the checkpoint before it is still being written after another \
         {seconds} s"
    )]
    Behind {
        /// Steps that were done.
        step: u64,
        /// How long this rank has waited.
        seconds: u64,
    },
    /// The folder must not be written into any more.
    #[error("no checkpoint is written into {}: {reason}", folder.display())]
    Refused {
        /// The folder of checkpoints.
        folder: PathBuf,
        /// Why.
        reason: String,
    },
    /// The thread that writes is gone.
    #[error("the thread that writes checkpoints ended without a word")]
    Gone,
}

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
