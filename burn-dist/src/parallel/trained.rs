//! The values of a trained model, one tensor at a time, for code that passes them on without the
//! model.

use std::collections::BTreeSet;

use burn::tensor::DType;

use super::{ParallelError, StateSourceRead, ema, state};

/// The values that [`load_model`](super::load_model) would load from a saved state.
///
/// These are parameters and buffers, or the averages of the parameters if the state has them.
pub struct TrainedValues<'a> {
    source: &'a dyn StateSourceRead,
    names: BTreeSet<String>,
    /// Names of the model's tensors that were not read yet.
    unused: BTreeSet<String>,
}

impl<'a> TrainedValues<'a> {
    /// Reads from `source`.
    pub fn new(source: &'a dyn StateSourceRead) -> Self {
        let names: BTreeSet<String> = source.names().into_iter().collect();
        let of_model = |name: &&String| state::model_path(name).is_some();
        Self {
            source,
            unused: names.iter().filter(of_model).cloned().collect(),
            names,
        }
    }

    /// Reads the elements of the tensor at `path`, row-major. It must have this `shape`.
    ///
    /// # Errors
    /// Returns the reason as a message.
    pub fn read(&mut self, path: &str, shape: &[usize]) -> Result<Vec<f32>, String> {
        let own = state::model_name(path);
        self.unused.remove(&own);
        let average = ema::tensor_name(path);
        let name = if self.names.contains(&average) {
            average
        } else {
            own
        };
        let found = self.source.shape(&name)?;
        if found != shape {
            return Err(format!(
                "the model has shape {shape:?}, the checkpoint {found:?}"
            ));
        }
        let data = self.source.read(&name)?.convert_dtype(DType::F32);
        data.try_into_vec().map_err(|error| error.to_string())
    }

    /// Checks that every tensor of the state was read. Call it last.
    ///
    /// # Errors
    /// Names a tensor that the model does not have.
    pub fn finish(&self) -> Result<(), ParallelError> {
        match self.unused.first() {
            None => Ok(()),
            Some(name) => Err(ParallelError::Restore {
                path: state::model_path(name).unwrap_or_default().to_owned(),
                reason: "the model has no tensor of this name".to_owned(),
            }),
        }
    }
}
