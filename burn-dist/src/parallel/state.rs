//! The state of a training as named tensors: taken out without stopping it, and put back.
//!
//! Parameters are known by their path in the module, because parameter ids differ between ranks
//! and runs.

use std::collections::{BTreeMap, BTreeSet};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use burn::module::{Module, ModuleMapper, ModuleVisitor, Param};
use burn::optim::{DynOptimizer, DynState, StateSink, StateSource};
use burn::tensor::{Bool, Device, ExecutionError, FloatDType, Int, Tensor, TensorData};
use serde_json::Value;

use super::ema::{self, Ema};
use super::optimizer::OptimizerState;
use super::replicas::AutodiffPlace;
use super::{ParallelError, ParameterSpec, statistics};

/// Name under which an optimizer's state is flattened.
const ROOT: &str = "state";

/// Reads one tensor's values; moves to another thread before it does.
type Values = Box<dyn FnOnce() -> Result<TensorData, ExecutionError> + Send>;

/// This rank's share of the state of a training, as it was at one step: every tensor is in the
/// share of one rank.
///
/// Taking it copies nothing; [`read`](Self::read) does, in any thread, while training goes on.
pub struct StateShare {
    model: Vec<(String, Values)>,
    states: Vec<(String, Arc<dyn DynOptimizer>, DynState)>,
    /// Averages of parameters, with their shapes.
    averages: Vec<(String, Vec<usize>, Arc<Vec<f32>>)>,
    scalars: BTreeMap<String, Value>,
}

/// Named values.
#[derive(Debug, Default)]
pub struct StateValues {
    /// `model/PATH`, and `optimizer/PATH/NAME` for each tensor that the optimizer keeps for the
    /// parameter at PATH; `ema/PATH` for its average.
    pub tensors: Vec<(String, TensorData)>,
    /// The numbers that an optimizer keeps, under names like those of its tensors, and
    /// `loss_scale/NAME` and `ema/updates`.
    pub scalars: BTreeMap<String, Value>,
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

    /// All numbers.
    fn scalars(&self) -> &BTreeMap<String, Value>;
}

impl StateShare {
    /// Adds numbers under a name of their own.
    pub(super) fn add_scalars(&mut self, prefix: &str, scalars: Vec<(String, Value)>) {
        let named = |(name, value)| (format!("{prefix}/{name}"), value);
        self.scalars.extend(scalars.into_iter().map(named));
    }

    /// Reads the values from the device.
    ///
    /// # Errors
    /// A tensor whose values the device does not give.
    pub fn read(self) -> Result<StateValues, ParallelError> {
        let mut values = StateValues {
            scalars: self.scalars,
            ..StateValues::default()
        };
        for (path, read) in self.model {
            let data = read().map_err(|error| ParallelError::Read {
                path: path.clone(),
                reason: error.to_string(),
            })?;
            values.tensors.push((model_name(&path), data));
        }
        for (path, shape, average) in self.averages {
            let data = TensorData::new(average.to_vec(), shape);
            values.tensors.push((ema::tensor_name(&path), data));
        }
        for (path, optimizer, state) in self.states {
            let mut sink = StateSink::default();
            optimizer.state_flatten(ROOT, &state, &mut sink);
            for (name, data) in sink.tensors {
                values.tensors.push((optimizer_name(&path, &name), data));
            }
            for (name, scalar) in sink.scalars {
                let value = serde_json::to_value(scalar).unwrap_or_default();
                values.scalars.insert(optimizer_name(&path, &name), value);
            }
        }
        Ok(values)
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

fn model_name(path: &str) -> String {
    format!("model/{path}")
}

/// `name` is as the optimizer flattened it, below [`ROOT`].
fn optimizer_name(path: &str, name: &str) -> String {
    let leaf = name.strip_prefix(ROOT).unwrap_or(name);
    format!("optimizer/{path}/{}", leaf.trim_start_matches('.'))
}

/// Takes the share of `rank` among `size` ranks: whole parameters with their optimizer state,
/// divided by size; buffers go to rank 0, whose values count.
pub(super) fn share<M: Module>(
    model: &M,
    parameters: &[ParameterSpec],
    optimizer: &OptimizerState,
    ema: Option<&Ema>,
    rank: usize,
    size: usize,
) -> StateShare {
    // Running statistics keep the last update apart from their value until they are next read.
    // `valid` folds it in, in the state that the model shares with its copy.
    drop(model.valid());
    let owners = owners(parameters, size);
    let mine = |index: usize| owners.get(index) == Some(&rank);
    let mut take = Take {
        path: Vec::new(),
        container: String::new(),
        mine: &mine,
        buffers: rank == 0,
        next: 0,
        taken: Vec::new(),
    };
    model.visit(&mut take);
    let average = |(index, parameter): (usize, &ParameterSpec)| {
        let values = ema?.values(index)?;
        Some((parameter.path.clone(), parameter.shape.clone(), values))
    };
    let averages = parameters
        .iter()
        .enumerate()
        .filter(|(index, _)| mine(*index))
        .filter_map(average)
        .collect();
    let states = parameters
        .iter()
        .enumerate()
        .filter(|(index, _)| mine(*index))
        .filter_map(|(index, parameter)| {
            let path = parameter.path.clone();
            Some((path, optimizer.optimizer(index)?, optimizer.state(index)?))
        })
        .collect();
    StateShare {
        model: take.taken,
        states,
        averages,
        scalars: BTreeMap::new(),
    }
}

/// The rank that each parameter belongs to: always the one that has least so far.
fn owners(parameters: &[ParameterSpec], size: usize) -> Vec<usize> {
    let mut loads = vec![0usize; size.max(1)];
    parameters
        .iter()
        .map(|parameter| {
            let least = (0..loads.len())
                .min_by_key(|rank| loads[*rank])
                .unwrap_or(0);
            loads[least] += parameter.num_elements();
            least
        })
        .collect()
}

struct Take<'a> {
    path: Vec<String>,
    /// Type of what holds the field that was entered last.
    container: String,
    mine: &'a dyn Fn(usize) -> bool,
    buffers: bool,
    /// Index of the trainable parameter that is visited next.
    next: usize,
    taken: Vec<(String, Values)>,
}

impl Take<'_> {
    fn push(&mut self, values: Values) {
        self.taken.push((self.path.join("."), values));
    }
}

impl ModuleVisitor for Take<'_> {
    fn enter_module(&mut self, name: &str, container_type: &str) {
        container_type.clone_into(&mut self.container);
        self.path.push(name.to_owned());
    }

    fn exit_module(&mut self, _name: &str, _container_type: &str) {
        self.path.pop();
    }

    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        let trains = param.is_require_grad();
        let wanted = if trains {
            self.next += 1;
            (self.mine)(self.next - 1)
        } else {
            self.buffers
        };
        if wanted {
            let mut tensor = param.base().inner();
            if !trains && statistics::are_in(&self.container) {
                // Whatever the precision, so that another one can continue.
                tensor = tensor.cast(FloatDType::F32);
            }
            self.push(Box::new(move || tensor.try_into_data()));
        }
    }

    fn visit_int<const D: usize>(&mut self, param: &Param<Tensor<D, Int>>) {
        if self.buffers {
            let tensor = param.base().inner();
            self.push(Box::new(move || tensor.try_into_data()));
        }
    }

    fn visit_bool<const D: usize>(&mut self, param: &Param<Tensor<D, Bool>>) {
        if self.buffers {
            let tensor = param.base().inner();
            self.push(Box::new(move || tensor.try_into_data()));
        }
    }
}

/// Replaces all tensors of `model` by those of `source`.
pub(super) fn restore_model<M: Module>(
    model: M,
    source: &dyn StateSourceRead,
) -> (M, Result<(), ParallelError>) {
    let unused = source.names();
    let unused = unused.iter().filter_map(|name| name.strip_prefix("model/"));
    let mut put = Put {
        path: Vec::new(),
        container: String::new(),
        source,
        unused: unused.map(str::to_owned).collect(),
        outcome: Ok(()),
    };
    drop(model.valid());
    let model = model.map(&mut put);
    if let (Ok(()), Some(path)) = (&put.outcome, put.unused.pop_first()) {
        put.outcome = Err(ParallelError::Restore {
            path,
            reason: "the model has no such tensor".to_owned(),
        });
    }
    (model, put.outcome)
}

struct Put<'a> {
    path: Vec<String>,
    /// Type of what holds the field that was entered last.
    container: String,
    source: &'a dyn StateSourceRead,
    /// Paths in the source that the model has not asked for.
    unused: BTreeSet<String>,
    outcome: Result<(), ParallelError>,
}

impl Put<'_> {
    /// The values for a tensor of this shape and type, unless something went wrong before.
    fn values(&mut self, own: &TensorDescription) -> Option<TensorData> {
        if self.outcome.is_err() {
            return None;
        }
        let path = self.path.join(".");
        self.unused.remove(&path);
        let read = self
            .source
            .read(&model_name(&path))
            .map_err(|reason| ParallelError::Restore {
                path: path.clone(),
                reason,
            })
            .and_then(|data| match (data.shape().to_vec(), data.dtype()) {
                found if found == *own => Ok(data),
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
type TensorDescription = (Vec<usize>, burn::tensor::DType);

impl ModuleMapper for Put<'_> {
    fn enter_module(&mut self, name: &str, container_type: &str) {
        container_type.clone_into(&mut self.container);
        self.path.push(name.to_owned());
    }

    fn exit_module(&mut self, _name: &str, _container_type: &str) {
        self.path.pop();
    }

    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        let mut own = (param.lazy_shape().to_vec(), param.dtype());
        if !param.is_require_grad() && statistics::are_in(&self.container) {
            own.1 = burn::tensor::DType::F32;
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

/// Rebuilds the optimizer's state of every parameter from `source`; a parameter of which it has
/// nothing starts without.
pub(super) fn restore_optimizer(
    parameters: &[ParameterSpec],
    optimizer: &mut OptimizerState,
    source: &dyn StateSourceRead,
    device: &Device,
) -> Result<(), ParallelError> {
    let names = source.names();
    for (index, parameter) in parameters.iter().enumerate() {
        let prefix = optimizer_name(&parameter.path, "");
        let failed = |reason: String| ParallelError::Restore {
            path: parameter.path.clone(),
            reason,
        };
        let leaf = |name: &str| {
            let leaf = name.strip_prefix(&prefix)?;
            Some(format!("{ROOT}.{leaf}"))
        };
        let mut scalars = BTreeMap::new();
        for (name, value) in source.scalars() {
            if let Some(leaf) = leaf(name) {
                let value = serde_json::from_value(value.clone())
                    .map_err(|error| failed(format!("`{name}` is no number: {error}")))?;
                scalars.insert(leaf, value);
            }
        }
        let mut wanted: BTreeSet<String> = scalars.keys().cloned().collect();
        let mut state = StateSource::new(scalars);
        for name in &names {
            if let Some(leaf) = leaf(name) {
                state.insert_tensor(leaf.clone(), source.read(name).map_err(failed)?);
                wanted.insert(leaf);
            }
        }
        if wanted.is_empty() {
            optimizer.set_state(index, None);
            continue;
        }
        let rank = parameter.shape.len();
        // An optimizer leaves out what it does not know, so what it made of it is looked at.
        let rebuilt = catch_unwind(AssertUnwindSafe(|| {
            let optimizer = optimizer.optimizer(index)?;
            let rebuilt = optimizer.state_unflatten(rank, ROOT, &mut state, device)?;
            let mut sink = StateSink::default();
            optimizer.state_flatten(ROOT, &rebuilt, &mut sink);
            let tensors = sink.tensors.into_iter().map(|(name, _)| name);
            let scalars = sink.scalars.into_iter().map(|(name, _)| name);
            (tensors.chain(scalars).collect::<BTreeSet<_>>() == wanted).then_some(rebuilt)
        }));
        let rebuilt = rebuilt.ok().flatten().ok_or_else(|| {
            failed("the checkpoint's optimizer state is that of another optimizer".to_owned())
        })?;
        optimizer.set_state(index, Some(rebuilt));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_are_divided_by_size() {
        let spec = |elements: usize| ParameterSpec {
            path: elements.to_string(),
            shape: vec![elements],
            dtype: crate::DType::F32,
        };
        let parameters = [spec(10), spec(4), spec(3), spec(2), spec(9)];
        assert_eq!(owners(&parameters, 2), [0, 1, 1, 1, 1]);
        assert_eq!(owners(&parameters, 1), [0; 5]);
        assert_eq!(owners(&[], 3), [0; 0]);
    }

    #[test]
    fn names_tell_model_and_optimizer_apart() {
        assert_eq!(model_name("fc.weight"), "model/fc.weight");
        let name = optimizer_name("fc.weight", "state.momentum.moment_1");
        assert_eq!(name, "optimizer/fc.weight/momentum.moment_1");
    }
}
