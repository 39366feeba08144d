//! Losses of training steps.

use burn::tensor::Tensor;

use crate::error::TrainError;
use crate::task::reading::Reading;

/// Reads the value of a loss in step `number`. Errors on the device since the last read show here.
///
/// # Errors
/// [`TrainError::NotComputed`].
pub fn read(loss: Tensor<1>, number: u64) -> Result<f64, TrainError> {
    let value = loss.try_into_scalar::<f32>().map(f64::from);
    value.map_err(|error| not_computed(number, error.to_string()))
}

fn not_computed(number: u64, reason: String) -> TrainError {
    TrainError::NotComputed {
        what: format!("the loss of step {number}"),
        reason,
    }
}

/// Losses of a step's micro-batches, which a GPU may still be computing.
#[derive(Debug)]
pub struct StepLoss {
    number: u64,
    losses: Reading,
    /// Weight of the micro-batches of each share, if the losses are sums over weights.
    weights: Option<Vec<f64>>,
    /// Number of this rank's shares of the step. They have the same number of micro-batches.
    shares: usize,
}

impl StepLoss {
    /// Starts reading the losses of the micro-batches of step `number`, at least one.
    ///
    /// They belong to `shares` shares, one after the other. They are sums over the `weights` of the
    /// shares, or means. Does not wait for a GPU, so that the GPU gets the next step's work before
    /// it finishes this one's.
    ///
    /// # Errors
    /// As [`read`].
    pub fn start_reading(
        losses: Vec<Tensor<1>>,
        (shares, weights): (usize, Option<Vec<f64>>),
        number: u64,
    ) -> Result<Self, TrainError> {
        let losses = Reading::start(losses).map_err(|reason| not_computed(number, reason))?;
        Ok(Self {
            number,
            losses,
            weights,
            shares,
        })
    }

    /// Whether the value has arrived.
    pub fn is_known(&self) -> bool {
        matches!(self.losses, Reading::Known(_))
    }

    /// Weights of the losses of each share, if they are sums.
    pub fn weights(&self) -> Option<&[f64]> {
        self.weights.as_deref()
    }

    /// Waits for the mean of the micro-batches of each share, or for the sum if they have weights.
    ///
    /// # Errors
    /// As [`read`].
    pub fn wait(self) -> Result<Vec<f64>, TrainError> {
        let losses = self.losses.wait();
        let losses = losses.map_err(|reason| not_computed(self.number, reason))?;
        let share = losses.len().div_ceil(self.shares.max(1)).max(1);
        let of_share = |losses: &[f32]| {
            let sum: f64 = losses.iter().copied().map(f64::from).sum();
            match self.weights {
                Some(_) => sum,
                None => sum / losses.len() as f64,
            }
        };
        Ok(losses.chunks(share).map(of_share).collect())
    }
}

#[cfg(test)]
impl StepLoss {
    /// Makes a loss that is known already.
    pub fn known(loss: f32) -> Self {
        Self {
            number: 0,
            losses: Reading::Known(vec![loss]),
            weights: None,
            shares: 1,
        }
    }

    /// Makes a sum over `weight` that is known already.
    pub fn known_sum(loss: f32, weight: f64) -> Self {
        Self {
            weights: Some(vec![weight]),
            ..Self::known(loss)
        }
    }
}
