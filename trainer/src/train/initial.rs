//! Loads the weights that training starts from, if the configuration names a file.

use std::path::Path;

use burn::module::Module;
use models::weights::{PyTorchKeys, Taken, WeightsError};

use crate::config::Config;
use crate::error::InitialError;
use crate::train::named_weights;

/// Messages about the weights taken from `path`.
pub(crate) fn notes(path: &Path, taken: &Taken) -> Vec<String> {
    let path = path.display();
    let name = |prefix: &str| match prefix.trim_end_matches('.') {
        "" => "the top".to_owned(),
        prefix => format!("`{prefix}`"),
    };
    let mut notes = Vec::new();
    if !taken.prefix.is_empty() {
        notes.push(format!("weights {path}, under {}", name(&taken.prefix)));
    }
    if !taken.alternatives.is_empty() {
        let others: Vec<String> = taken.alternatives.iter().map(|other| name(other)).collect();
        notes.push(format!(
            "warning: {path} also contains weights that fit under {}; choose with weights.part",
            others.join(", ")
        ));
    }
    if !taken.mismatches.is_empty() {
        notes.push(format!(
            "warning: loaded {} tensors of {path} (weights.strict = false); the model keeps its \
             own values for the others{}",
            taken.tensors, taken.mismatches
        ));
    }
    notes
}

/// Loads the file of `config`, if any, into `model`, and reports the weights that were taken.
///
/// Rank 0 calls this before its parameters are broadcast.
///
/// # Errors
/// Fails if the file cannot be read or belongs to another model.
pub fn load<M: Module + PyTorchKeys>(
    model: M,
    config: &Config,
) -> Result<(M, Option<Taken>), InitialError> {
    let Some(file) = config.model.weights.as_deref() else {
        return Ok((model, None));
    };
    let new_head = config.model.new_head;
    let loaded = named_weights::load(&model, file, new_head, &config.weights);
    let (model, taken) = loaded.map_err(|source| {
        let is_misfit = matches!(source, WeightsError::Mismatch { .. });
        let fits_without = || named_weights::load(&model, file, true, &config.weights).is_ok();
        InitialError {
            other_head: is_misfit && !new_head && fits_without(),
            source,
        }
    })?;
    Ok((model, Some(taken)))
}
