//! The state of a training as named tensors, taken out without a pause and put back.
//!
//! Parameters are known by their path in the module, because ids differ between ranks and runs.
//! This file holds names and values. `share` takes them out; `restore` puts them into a model,
//! `optimizer` into an optimizer, `double` into optimizers of `f64` parameters. `finite` finds
//! states with NaN or infinity.

mod double;
mod finite;
mod optimizer;
mod restore;
mod share;

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use burn::tensor::TensorData;
use serde_json::Value;

use super::ParameterSpec;
pub(super) use double::{Rebuild, rebuild};
pub(super) use optimizer::restore_optimizer;
pub(super) use restore::{restore_model, restore_pieces};
pub use share::StateShare;
pub(super) use share::{Whole, share};

/// Name under which an optimizer's state is flattened.
const ROOT: &str = "state";

/// Named values of a state.
#[derive(Debug, Default)]
pub struct StateValues {
    /// Whole tensors by name.
    ///
    /// The names are `model/PATH`, `optimizer/PATH/NAME` for each tensor that the optimizer keeps
    /// for the parameter at PATH, and `ema/PATH` for its average.
    pub tensors: Vec<(String, TensorData)>,
    /// Parts of tensors; the rest is in other shares.
    pub parts: Vec<StatePart>,
    /// Scalars of the training.
    ///
    /// These are the optimizer's, under names like those of its tensors, `loss_scale/NAME` and
    /// `ema/updates`.
    pub scalars: BTreeMap<String, Value>,
    /// Names of the model's tensors that training does not change. They may be infinite, as masks
    /// are.
    pub fixed: BTreeSet<String>,
}

/// A part of a tensor.
#[derive(Debug)]
pub struct StatePart {
    /// Name of the tensor.
    pub name: String,
    /// Shape of the whole tensor.
    pub shape: Vec<usize>,
    /// Index of the first element in this part.
    pub start: usize,
    /// The values, flat.
    pub data: TensorData,
}

/// The same elements in another shape with as many elements.
pub(crate) fn reshaped(data: TensorData, shape: Vec<usize>) -> TensorData {
    if data.num_elements() != shape.iter().product::<usize>() {
        return data;
    }
    let (bytes, _, dtype) = data.into_parts();
    TensorData::from_bytes(bytes, shape, dtype)
}

/// A saved state to read from.
pub trait StateSourceRead {
    /// The names of all tensors.
    fn names(&self) -> Vec<String>;

    /// Reads a tensor, by a name that [`names`](Self::names) returned.
    ///
    /// # Errors
    /// Returns the reason as a message.
    fn read(&self, name: &str) -> Result<TensorData, String>;

    /// The shape of a tensor.
    ///
    /// # Errors
    /// Returns the reason as a message.
    fn shape(&self, name: &str) -> Result<Vec<usize>, String>;

    /// Reads some elements of a tensor, flat, in storage order.
    ///
    /// # Errors
    /// Returns the reason as a message.
    fn read_part(&self, name: &str, elements: Range<usize>) -> Result<TensorData, String>;

    /// All scalars.
    fn scalars(&self) -> &BTreeMap<String, Value>;
}

/// Reads this rank's part of a tensor with as many elements as `parameter`.
pub(super) fn read_owned(
    source: &dyn StateSourceRead,
    name: &str,
    parameter: &ParameterSpec,
    owned: &Range<usize>,
) -> Result<Vec<f32>, String> {
    let shape = source.shape(name)?;
    if shape != parameter.shape {
        return Err(format!(
            "the model has shape {:?}, the checkpoint {shape:?}",
            parameter.shape
        ));
    }
    if owned.is_empty() {
        return Ok(Vec::new());
    }
    let data = source.read_part(name, owned.clone())?;
    match data.try_into_vec::<f32>() {
        Ok(values) if values.len() == owned.len() => Ok(values),
        _ => Err("it is not f32".to_owned()),
    }
}

/// The scalars under `prefix`.
pub(super) fn scalars(source: &dyn StateSourceRead, prefix: &str) -> BTreeMap<String, Value> {
    let named = |(name, value): (&String, &Value)| {
        let name = name.strip_prefix(prefix)?.strip_prefix('/')?;
        Some((name.to_owned(), value.clone()))
    };
    source.scalars().iter().filter_map(named).collect()
}

pub(super) fn model_name(path: &str) -> String {
    format!("model/{path}")
}

/// The path of the tensor `name` in the model, if it belongs to the model.
pub(super) fn model_path(name: &str) -> Option<&str> {
    name.strip_prefix("model/")
}

/// The full name of an optimizer tensor. `name` is the optimizer's own, below [`ROOT`].
fn optimizer_name(path: &str, name: &str) -> String {
    let leaf = name.strip_prefix(ROOT).unwrap_or(name);
    format!("optimizer/{path}/{}", leaf.trim_start_matches('.'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_tell_model_and_optimizer_apart() {
        assert_eq!(model_name("fc.weight"), "model/fc.weight");
        let name = optimizer_name("fc.weight", "state.momentum.moment_1");
        assert_eq!(name, "optimizer/fc.weight/momentum.moment_1");
    }
}
