//! The weights that training starts from, where the configuration names a file of them.

use models::ImageClassifier;
use models::weights::{PyTorchKeys, WeightsError};

use crate::config::ModelConfig;
use crate::named_weights;

/// Weights of a file that a model cannot start from.
#[derive(Debug, thiserror::Error)]
#[error("cannot start from model.weights: {source}{}", hint(*other_head))]
pub struct InitialError {
    /// Whether all but the last layer fits.
    other_head: bool,
    source: WeightsError,
}

fn hint(other_head: bool) -> &'static str {
    match other_head {
        true => {
            "\nonly the last layer does not fit, as of a model for other classes: set model.new_head = true \
             to start with a new one"
        }
        false => "",
    }
}

/// Gives `model` the weights of the file that `config` names, if it names one. Rank 0 calls this
/// before its parameters are broadcast.
///
/// # Errors
/// If the file cannot be read or is of another model.
pub fn load<M: ImageClassifier + PyTorchKeys>(
    model: M,
    config: &ModelConfig,
) -> Result<M, InitialError> {
    let (Some(file), new_head) = config.weights() else {
        return Ok(model);
    };
    named_weights::load(&model, file, new_head).map_err(|source| {
        let is_misfit = matches!(source, WeightsError::Mismatch { .. });
        let fits_without = || named_weights::load(&model, file, true).is_ok();
        InitialError {
            other_head: is_misfit && !new_head && fits_without(),
            source,
        }
    })
}
