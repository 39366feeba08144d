//! Callbacks of the training loop: other code can watch a run, save a checkpoint or stop it.

use std::path::Path;

use crate::run::metrics::TrainLine;
use crate::task::Evaluation;
use crate::train::Summary;

/// Error of a callback.
pub type CallbackError = Box<dyn std::error::Error + Send + Sync>;

/// A callback's decision on how the run goes on.
///
/// If a callback of one rank asks for something, all ranks do it, at the same step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Action {
    /// Go on.
    #[default]
    Continue,
    /// Save a checkpoint, if the configuration enables checkpoints, and go on.
    Save,
    /// Evaluate and end the run, as early stopping does.
    Stop,
}

/// Facts known when a run begins.
#[derive(Clone, Copy, Debug)]
pub struct Begin<'a> {
    /// This rank.
    pub rank: usize,
    /// Number of ranks.
    pub world_size: usize,
    /// Folder of the run. Only on rank 0, and not in a trial run.
    pub run_dir: Option<&'a Path>,
    /// Steps done before this process, if the run continues.
    pub steps: u64,
    /// Optimizer steps per epoch.
    pub steps_per_epoch: u64,
    /// Configured number of epochs.
    pub epochs: u64,
    /// Trainable elements of the model.
    pub parameters: usize,
}

/// A finished epoch and its evaluation.
#[derive(Clone, Copy, Debug)]
pub struct EpochEnd<'a> {
    /// Epoch, from 1.
    pub epoch: u64,
    /// Steps so far.
    pub steps: u64,
    /// Mean loss of the epoch's steps over all ranks. NaN if all steps were skipped.
    pub train_loss: f64,
    /// Evaluation on the test data.
    pub evaluation: &'a Evaluation,
}

/// Hooks into a training run.
///
/// Every rank has its own callbacks and calls them at the same points. A callback that fails ends
/// the run.
///
/// ```
/// use trainer::train::callback::{Action, Callback, CallbackError};
/// use trainer::run::metrics::TrainLine;
///
/// /// Ends the run when the loss is small enough.
/// struct Until(f64);
///
/// impl Callback for Until {
///     fn on_step(&mut self, step: &TrainLine) -> Result<Action, CallbackError> {
///         Ok(if step.loss < self.0 { Action::Stop } else { Action::Continue })
///     }
/// }
/// ```
pub trait Callback: Send {
    /// Runs before the first step.
    ///
    /// # Errors
    /// An error keeps the run from starting.
    fn on_begin(&mut self, begin: &Begin<'_>) -> Result<(), CallbackError> {
        let _ = begin;
        Ok(())
    }

    /// Runs when the numbers of a step are known.
    ///
    /// That is two steps later, so that the run need not wait for the device or for the mean over
    /// the ranks. At the end of an epoch and before a checkpoint it is at once.
    ///
    /// # Errors
    /// An error ends the run.
    fn on_step(&mut self, step: &TrainLine) -> Result<Action, CallbackError> {
        let _ = step;
        Ok(Action::Continue)
    }

    /// Runs after the evaluation of an epoch.
    ///
    /// # Errors
    /// An error ends the run.
    fn on_epoch_end(&mut self, epoch: &EpochEnd<'_>) -> Result<Action, CallbackError> {
        let _ = epoch;
        Ok(Action::Continue)
    }

    /// Runs after the last step, unless an error ended the run.
    ///
    /// # Errors
    /// An error makes the run fail.
    fn on_end(&mut self, summary: &Summary) -> Result<(), CallbackError> {
        let _ = summary;
        Ok(())
    }
}
