//! The weights that training starts from, where the configuration names a file of them.

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::path::Path;

use models::ImageClassifier;
use models::weights::{PyTorchKeys, Taken, WeightsError};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::config::Config;
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

/// Which weights a run started from.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Initial {
    /// The file, by its absolute path.
    pub path: String,
    /// SHA-256 of the file, as `sha256sum` prints it.
    pub sha256: String,
    /// What stands in the file before the names of the tensors.
    pub prefix: String,
    /// Tensors that were loaded.
    pub tensors: usize,
    /// Batches that PyTorch's batch normalizations had counted, the largest number of them.
    pub batches: i64,
    /// Those that had counted fewer, by the names of their counters.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub fewer_batches: BTreeMap<String, i64>,
}

impl Initial {
    /// That of a file, of which so much was taken.
    ///
    /// # Errors
    /// If the file cannot be read again.
    pub(crate) fn of(path: &Path, taken: &Taken) -> io::Result<Self> {
        let mut hasher = Sha256::new();
        io::copy(&mut File::open(path)?, &mut hasher)?;
        let digest = hasher.finalize();
        let absolute = std::path::absolute(path)?;
        let most = taken.batches.values().copied().max().unwrap_or_default();
        let fewer = taken.batches.iter().filter(|(_, count)| **count < most);
        Ok(Self {
            path: absolute.display().to_string(),
            sha256: digest.iter().map(|byte| format!("{byte:02x}")).collect(),
            prefix: taken.prefix.clone(),
            tensors: taken.tensors,
            batches: most,
            fewer_batches: fewer.map(|(name, count)| (name.clone(), *count)).collect(),
        })
    }
}

/// What a person should know of what was taken of `path`.
pub(crate) fn notes(path: &Path, taken: &Taken) -> Vec<String> {
    let path = path.display();
    let name = |prefix: &str| match prefix.trim_end_matches('.') {
        "" => "the top".to_owned(),
        prefix => format!("`{prefix}`"),
    };
    let mut notes = Vec::new();
    if !taken.prefix.is_empty() {
        notes.push(format!("weights: {path}, under {}", name(&taken.prefix)));
    }
    if !taken.alternatives.is_empty() {
        let others: Vec<String> = taken.alternatives.iter().map(|other| name(other)).collect();
        notes.push(format!(
            "warning: {path} has weights that fit under {} as well; weights.part chooses",
            others.join(", ")
        ));
    }
    if !taken.mismatches.is_empty() {
        notes.push(format!(
            "warning: {} tensors of {path} were loaded (weights.strict = false); of the others the model has its own{}",
            taken.tensors, taken.mismatches
        ));
    }
    notes
}

/// Gives `model` the weights of the file that `config` names, if it names one, and says what was taken. Rank 0 calls this
/// before its parameters are broadcast.
///
/// # Errors
/// If the file cannot be read or is of another model.
pub fn load<M: ImageClassifier + PyTorchKeys>(
    model: M,
    config: &Config,
) -> Result<(M, Option<Taken>), InitialError> {
    let (Some(file), new_head) = config.model.weights() else {
        return Ok((model, None));
    };
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
