//! What other code may see of a training, and decide: callbacks of the loop.

use std::path::Path;

use crate::eval::evaluation::Evaluation;
use crate::run::metrics::TrainLine;
use crate::train::Summary;

/// Why a callback could not do its work.
pub type CallbackError = Box<dyn std::error::Error + Send + Sync>;

/// What a callback wants the run to do next. What one rank's callback wants, all ranks do, at the
/// same step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Action {
    /// Go on.
    #[default]
    Continue,
    /// Save a checkpoint, if the configuration has any, and go on.
    Save,
    /// Evaluate and end the run, as early stopping does.
    Stop,
}

/// What is known when a run begins.
#[derive(Clone, Copy, Debug)]
pub struct Begin<'a> {
    /// This rank.
    pub rank: usize,
    /// Number of ranks.
    pub world_size: usize,
    /// Folder of the run; on rank 0, and not in a trial run.
    pub run_dir: Option<&'a Path>,
    /// Steps that were done before, if the run continues.
    pub steps: u64,
    /// Optimizer steps of an epoch.
    pub steps_per_epoch: u64,
    /// Epochs, if nothing ends the run before.
    pub epochs: u64,
    /// Trainable elements of the model.
    pub parameters: usize,
}

/// An epoch that is over, with its evaluation.
#[derive(Clone, Copy, Debug)]
pub struct EpochEnd<'a> {
    /// Epoch, from 1.
    pub epoch: u64,
    /// Steps so far.
    pub steps: u64,
    /// Mean loss of the epoch's steps, over all ranks; no number if none of them has one, as all
    /// were skipped.
    pub train_loss: f64,
    /// How good the model is on the test images.
    pub evaluation: &'a Evaluation,
}

/// Sees what happens in a training. Every rank has its own, and calls it at the same moments; a
/// callback that fails ends the run.
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
    /// Before the first step.
    ///
    /// # Errors
    /// What keeps the run from starting.
    fn on_begin(&mut self, begin: &Begin<'_>) -> Result<(), CallbackError> {
        let _ = begin;
        Ok(())
    }

    /// The numbers of a step are known: two steps later, so that nobody waits for the device to
    /// compute the loss, nor for its mean over the ranks; at the end of an epoch and before a
    /// checkpoint at once.
    ///
    /// # Errors
    /// What ends the run.
    fn on_step(&mut self, step: &TrainLine) -> Result<Action, CallbackError> {
        let _ = step;
        Ok(Action::Continue)
    }

    /// After the evaluation of an epoch.
    ///
    /// # Errors
    /// What ends the run.
    fn on_epoch_end(&mut self, epoch: &EpochEnd<'_>) -> Result<Action, CallbackError> {
        let _ = epoch;
        Ok(Action::Continue)
    }

    /// After the last step, if no error ended the run.
    ///
    /// # Errors
    /// What makes the run count as failed.
    fn on_end(&mut self, summary: &Summary) -> Result<(), CallbackError> {
        let _ = summary;
        Ok(())
    }
}
