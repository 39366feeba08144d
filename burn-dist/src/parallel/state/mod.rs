//! The state of a training as named tensors: taken out without stopping it, and put back.
//!
//! Parameters are known by their path in the module, because parameter ids differ between ranks and
//! runs. Here are the names and the values; `share` takes them out, `restore` puts them back into a
//! model, and `optimizer` into an optimizer, with `double` for parameters in `f64`. `finite` finds
//! states that are worth nothing.

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

/// Named values.
#[derive(Debug, Default)]
pub struct StateValues {
    /// `model/PATH`, and `optimizer/PATH/NAME` for each tensor that the optimizer keeps for the
    /// parameter at PATH; `ema/PATH` for its average.
    pub tensors: Vec<(String, TensorData)>,
    /// Parts of such tensors, of which the rest is in other shares.
    pub parts: Vec<StatePart>,
    /// The numbers that an optimizer keeps, under names like those of its tensors, and
    /// `loss_scale/NAME` and `ema/updates`.
    pub scalars: BTreeMap<String, Value>,
    /// The names of tensors of the model that training leaves as they are. They may be infinite, as
    /// masks are.
    pub fixed: BTreeSet<String>,
}

/// A part of a tensor.
#[derive(Debug)]
pub struct StatePart {
    /// Name of the tensor.
    pub name: String,
    /// Its shape.
    pub shape: Vec<usize>,
    /// The first of its elements that is in this part.
    pub start: usize,
    /// The values, flat.
    pub data: TensorData,
}

/// The same elements under another shape, which must have as many.
pub(crate) fn reshaped(data: TensorData, shape: Vec<usize>) -> TensorData {
    if data.num_elements() != shape.iter().product::<usize>() {
        return data;
    }
    let (bytes, _, dtype) = data.into_parts();
    TensorData::from_bytes(bytes, shape, dtype)
}

/// Where the state of a training is read from.
pub trait StateSourceRead {
    /// The names of all tensors.
    fn names(&self) -> Vec<String>;

    /// The values of a tensor, by a name that [`names`](Self::names) gave.
    ///
    /// # Errors
    /// Why they cannot be read, for people.
    fn read(&self, name: &str) -> Result<TensorData, String>;

    /// The shape of a tensor.
    ///
    /// # Errors
    /// Why it is not known, for people.
    fn shape(&self, name: &str) -> Result<Vec<usize>, String>;

    /// Some elements of a tensor, flat, in the order in which they are stored.
    ///
    /// # Errors
    /// Why they cannot be read, for people.
    fn read_part(&self, name: &str, elements: Range<usize>) -> Result<TensorData, String>;

    /// All numbers.
    fn scalars(&self) -> &BTreeMap<String, Value>;
}

/// What this rank owns of a tensor that is as large as `parameter`.
pub(super) fn read_owned(
    source: &dyn StateSourceRead,
    name: &str,
    parameter: &ParameterSpec,
    owned: &Range<usize>,
) -> Result<Vec<f32>, String> {
    let shape = source.shape(name)?;
    if shape != parameter.shape {
        return Err(format!(
            "the model has {:?}, the checkpoint {shape:?}",
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

/// The numbers that were saved under `prefix`.
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

/// The path in the model of the tensor `name`, if it is one of the model's.
pub(super) fn model_path(name: &str) -> Option<&str> {
    name.strip_prefix("model/")
}

/// `name` is as the optimizer flattened it, below [`ROOT`].
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
