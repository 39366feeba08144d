//! Restores saved parameters and buffers into a model.

use std::collections::BTreeSet;
use std::ops::Range;

use burn::module::{Module, ModuleMapper, Param};
use burn::tensor::{Bool, DType, Device, Int, Tensor, TensorData};

use super::{StateSourceRead, model_name, model_path, read_owned};
use crate::flat;
use crate::parallel::replicas::AutodiffPlace;
use crate::parallel::visited::keeps_path;
use crate::parallel::{ParallelError, ParameterSpec, statistics};

/// Replaces all tensors of `model` by those of `source`, except trainable parameters if they are
/// `elsewhere`.
pub(in crate::parallel) fn restore_model<M: Module>(
    model: M,
    source: &dyn StateSourceRead,
    elsewhere: bool,
) -> (M, Result<(), ParallelError>) {
    let unused = source.names();
    let unused = unused.iter().filter_map(|name| model_path(name));
    let mut put = Put {
        path: Vec::new(),
        container: String::new(),
        source,
        elsewhere,
        unused: unused.map(str::to_owned).collect(),
        outcome: Ok(()),
    };
    drop(model.valid());
    let model = model.map(&mut put);
    if let (Ok(()), Some(path)) = (&put.outcome, put.unused.pop_first()) {
        put.outcome = Err(ParallelError::Restore {
            path,
            reason: "the model has no tensor of this name".to_owned(),
        });
    }
    (model, put.outcome)
}

struct Put<'a> {
    path: Vec<String>,
    /// Type of the container entered last.
    container: String,
    source: &'a dyn StateSourceRead,
    elsewhere: bool,
    /// Paths in the source that the model does not use.
    unused: BTreeSet<String>,
    outcome: Result<(), ParallelError>,
}

impl Put<'_> {
    /// The values for a tensor of this shape and type, unless an earlier tensor failed.
    fn values(&mut self, own: &TensorDescription) -> Option<TensorData> {
        if self.outcome.is_err() {
            return None;
        }
        let path = self.path.join(".");
        self.unused.remove(&path);
        let read = self
            .source
            .read(&model_name(&path))
            .map_err(|reason| ParallelError::restore(&path, reason))
            .and_then(|data| match (data.shape().to_vec(), data.dtype()) {
                (shape, dtype) if shape == own.0 && is_same_type(dtype, own.1) => Ok(data),
                found => Err(ParallelError::Restore {
                    path,
                    reason: format!(
                        "the model has {:?} {:?}, the checkpoint {:?} {:?}",
                        own.0, own.1, found.0, found.1
                    ),
                }),
            });
        read.map_err(|error| self.outcome = Err(error)).ok()
    }
}

/// Shape and element type.
type TensorDescription = (Vec<usize>, DType);

/// Whether values of one type can replace those of the other. Each device stores booleans in its
/// own way.
fn is_same_type(one: DType, other: DType) -> bool {
    one == other || (one.is_bool() && other.is_bool())
}

impl ModuleMapper for Put<'_> {
    keeps_path!(and container);

    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        if self.elsewhere && param.is_require_grad() {
            self.unused.remove(&self.path.join("."));
            return param;
        }
        let mut own = (param.lazy_shape().to_vec(), param.dtype());
        let is_running = !param.is_require_grad() && statistics::is_running(self.path.last());
        if is_running && statistics::are_in(&self.container) {
            own.1 = statistics::saved_as(own.1);
        }
        let Some(values) = self.values(&own) else {
            return param;
        };
        param.map(|value| {
            let place = AutodiffPlace::of(&value);
            let device = value.device().inner();
            place.restore(Tensor::from_data(values, (&device, value.dtype())))
        })
    }

    fn map_int<const D: usize>(&mut self, param: Param<Tensor<D, Int>>) -> Param<Tensor<D, Int>> {
        let own = (param.lazy_shape().to_vec(), param.dtype());
        let Some(values) = self.values(&own) else {
            return param;
        };
        param.map(|value| Tensor::from_data(values, (&value.device(), value.dtype())))
    }

    fn map_bool<const D: usize>(
        &mut self,
        param: Param<Tensor<D, Bool>>,
    ) -> Param<Tensor<D, Bool>> {
        let own = (param.lazy_shape().to_vec(), param.dtype());
        let Some(values) = self.values(&own) else {
            return param;
        };
        param.map(|value| Tensor::from_data(values, &value.device()))
    }
}

/// This rank's pieces of the parameters, on `device`.
pub(in crate::parallel) fn restore_pieces(
    (parameters, owned): (&[ParameterSpec], &[Range<usize>]),
    device: &Device,
    source: &dyn StateSourceRead,
) -> Result<Vec<Tensor<1>>, ParallelError> {
    let read = |(parameter, owned): (&ParameterSpec, &Range<usize>)| {
        let values = read_owned(source, &model_name(&parameter.path), parameter, owned);
        values
            .map(|values| flat::put(values, device))
            .map_err(|reason| ParallelError::restore(&parameter.path, reason))
    };
    parameters.iter().zip(owned).map(read).collect()
}
