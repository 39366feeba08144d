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
    /// Evaluate now, within the epoch, and go on.
    Evaluate,
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

/// An evaluation, at the end of an epoch or within it.
#[derive(Clone, Copy, Debug)]
pub struct AfterEvaluation<'a> {
    /// Whether the epoch goes on.
    pub within_epoch: bool,
    /// Epoch, from 1.
    pub epoch: u64,
    /// Steps so far.
    pub steps: u64,
    /// Mean loss of the epoch's steps so far, over all ranks. NaN if all were skipped.
    pub train_loss: f64,
    /// The metrics.
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

    /// Returns the learning rate of step `number` (from 1), given the schedule's or that of the
    /// callback before. Runs before the step.
    ///
    /// All ranks must return the same rate; otherwise the step fails and names both.
    ///
    /// # Errors
    /// An error ends the run.
    fn learning_rate(&mut self, number: u64, scheduled: f64) -> Result<f64, CallbackError> {
        let _ = number;
        Ok(scheduled)
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

    /// Runs after every evaluation.
    ///
    /// [`Action::Evaluate`] means nothing here.
    ///
    /// # Errors
    /// An error ends the run.
    fn on_evaluation(&mut self, after: &AfterEvaluation<'_>) -> Result<Action, CallbackError> {
        let _ = after;
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
