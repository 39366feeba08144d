//! Errors of a distributed training.

use std::path::PathBuf;

use burn_core::data::dataset::DatasetError;
use burn_dist::parallel::{ParallelError, Strategy};
use burn_dist::{CollectiveError, ProcessGroup};
use burn_train::TrainingError;
use burn_train::train::WorkerFailure;

/// An error that ends the training on all ranks.
///
/// burn-train has no variant for it. It becomes [`TrainingError::Workers`] with the rank to blame
/// as the device.
#[derive(Debug, thiserror::Error)]
pub(crate) enum LearnerError {
    /// The model cannot be trained in parallel, or a step failed.
    #[error(transparent)]
    Parallel(#[from] ParallelError),
    /// A collective failed.
    #[error(transparent)]
    Group(#[from] burn_dist::Error),
    /// A batch cannot be loaded.
    #[error("cannot load a batch: {0}")]
    Dataset(DatasetError),
    /// The strategy shards the optimizer's state.
    #[error(
        "{strategy} shards the optimizer's state, and the Learner does not give its optimizer away. \
         Pass the optimizer to Distributed::optimizer, or use ddp"
    )]
    OptimizerIsPrivate {
        /// The strategy.
        strategy: Strategy,
    },
    /// The training saves checkpoints, and there is no folder for the sharded state.
    #[error(
        "the optimizer of Distributed::optimizer is not in burn-train's checkpoints. Set a folder \
         for its state with Distributed::state_folder"
    )]
    NoStateFolder,
    /// The state of an epoch to resume from is missing.
    #[error("{} has no state of epoch {epoch}; it has the epochs {found:?}", folder.display())]
    NoState {
        /// The epoch.
        epoch: usize,
        /// The folder.
        folder: PathBuf,
        /// The epochs that it has.
        found: Vec<u64>,
    },
    /// Gradients contain NaN or infinity.
    #[error("gradients contain NaN or infinity in iteration {iteration} of epoch {epoch}")]
    Diverged {
        /// The epoch.
        epoch: usize,
        /// The iteration in the epoch.
        iteration: usize,
    },
    /// The output of a step cannot be sent or rebuilt.
    #[error("cannot send the output of a step to rank 0: {reason}")]
    Output {
        /// The cause.
        reason: String,
    },
}

impl LearnerError {
    pub(crate) fn output(reason: impl ToString) -> Self {
        Self::Output {
            reason: reason.to_string(),
        }
    }

    /// The failed collective that caused this error, if any.
    fn collective(&self) -> Option<&CollectiveError> {
        match self {
            Self::Parallel(error) => error.collective(),
            Self::Group(error) => error.collective(),
            _ => None,
        }
    }

    /// Tells the other ranks, unless it comes from them, and makes burn-train's error of it.
    pub(crate) fn told(self, group: &ProcessGroup) -> TrainingError {
        let failed = match self.collective() {
            Some(CollectiveError::PeerFailed { failed, .. }) => *failed,
            Some(_) => None,
            None => {
                group.abort(&self.to_string());
                Some(group.rank())
            }
        };
        match self {
            Self::Dataset(error) => TrainingError::Dataset(error),
            error => TrainingError::Workers(vec![WorkerFailure {
                device_id: failed.unwrap_or(group.rank()),
                message: error.to_string(),
            }]),
        }
    }
}
