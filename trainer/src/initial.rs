//! The weights that training starts from, where the configuration names a file of them.

use models::ImageClassifier;
use models::weights::{Load, PyTorchKeys, WeightsError};

use crate::config::ModelConfig;

/// Weights of a file that a model cannot start from.
#[derive(Debug, thiserror::Error)]
#[error("cannot start from model.weights: {source}{}", hint(*new_head, source))]
pub struct InitialError {
    new_head: bool,
    source: WeightsError,
}

/// What to do about it, where that is not clear from the error.
fn hint(new_head: bool, error: &WeightsError) -> &'static str {
    match (new_head, error) {
        (false, WeightsError::Mismatch { .. }) => {
            "\nif the file is of a model for other classes, set model.new_head = true"
        }
        _ => "",
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
    let keys = model.key_map();
    let load = match new_head {
        true => Load::new().without(model.head()),
        false => Load::new(),
    };
    let loaded = load.load(model, file, &keys);
    loaded.map_err(|source| InitialError { new_head, source })
}
