//! Takes a rank's share of the state while training goes on.

use std::collections::BTreeMap;
use std::ops::Range;

use burn::module::{Module, ModuleVisitor, Param};
use burn::optim::{DynState, StateSink};
use burn::tensor::{Bool, ExecutionError, FloatDType, Int, Tensor, TensorData};
use serde_json::Value;

use super::{ROOT, StatePart, StateValues, model_name, optimizer_name, reshaped};
use crate::parallel::ema::{self, Ema};
use crate::parallel::groups::StepRule;
use crate::parallel::optimizer::{KeptState, OptimizerState};
use crate::parallel::visited::keeps_path;
use crate::parallel::{ParallelError, ParameterSpec, statistics};
use crate::shard;

/// Reads one tensor's values. It may move to another thread first.
type Read = Box<dyn FnOnce() -> Result<TensorData, ExecutionError> + Send>;

/// This rank's share of the state of a training at one step.
///
/// Every element is in one rank's share. Taking it copies nothing; [`read`](Self::read) copies in
/// any thread while training goes on. On a GPU the values are read when the share is taken.
pub struct StateShare {
    model: Vec<Taken>,
    states: Vec<(Owned, StepRule, DynState)>,
    /// The owned elements, with the names of their tensors.
    parts: Vec<(String, Owned, Tensor<1>)>,
    scalars: BTreeMap<String, Value>,
    /// All values, if they have been read.
    settled: Option<Result<StateValues, ParallelError>>,
}

/// A tensor of the model.
struct Taken {
    path: String,
    /// Whether training leaves it unchanged.
    is_fixed: bool,
    read: Read,
}

/// Elements of a parameter that a tensor belongs to.
#[derive(Clone)]
struct Owned {
    path: String,
    shape: Vec<usize>,
    elements: Range<usize>,
}

impl StateValues {
    fn push(&mut self, name: String, place: &Owned, data: TensorData) {
        let (shape, start) = (place.shape.clone(), place.elements.start);
        if data.num_elements() == shape.iter().product::<usize>() {
            self.tensors.push((name, reshaped(data, shape)));
        } else {
            self.parts.push(StatePart {
                name,
                shape,
                start,
                data,
            });
        }
    }
}

impl StateShare {
    /// An empty share: another rank's share has what this rank holds.
    pub(in crate::parallel) fn nothing() -> Self {
        Self {
            model: Vec::new(),
            states: Vec::new(),
            parts: Vec::new(),
            scalars: BTreeMap::new(),
            settled: None,
        }
    }

    /// Adds scalars under the prefix `prefix`.
    pub(in crate::parallel) fn add_scalars(&mut self, prefix: &str, scalars: Vec<(String, Value)>) {
        let named = |(name, value)| (format!("{prefix}/{name}"), value);
        self.scalars.extend(scalars.into_iter().map(named));
    }

    /// Reads the values now and copies them. A value from a GPU may be a view of memory that the
    /// next steps change.
    pub(in crate::parallel) fn settle(self) -> Self {
        let own = |data: &mut TensorData| {
            let bytes = data.as_bytes().to_vec();
            *data = TensorData::from_bytes_vec(bytes, data.shape().clone(), data.dtype());
        };
        let settled = self.read().map(|mut values| {
            values.tensors.iter_mut().for_each(|(_, data)| own(data));
            values.parts.iter_mut().for_each(|part| own(&mut part.data));
            values
        });
        Self {
            settled: Some(settled),
            ..Self::nothing()
        }
    }

    /// Reads the values from the device.
    ///
    /// # Errors
    /// Fails if the device cannot return a tensor's values.
    pub fn read(self) -> Result<StateValues, ParallelError> {
        if let Some(settled) = self.settled {
            return settled;
        }
        let mut values = StateValues {
            scalars: self.scalars,
            ..StateValues::default()
        };
        let take = |path: &str, data: Result<TensorData, ExecutionError>| {
            data.map_err(|error| ParallelError::read(path, error))
        };
        for Taken {
            path,
            is_fixed,
            read,
        } in self.model
        {
            let name = model_name(&path);
            if is_fixed {
                values.fixed.insert(name.clone());
            }
            values.tensors.push((name, take(&path, read())?));
        }
        for (name, place, part) in self.parts {
            let data = take(&place.path, part.try_into_data())?;
            values.push(name, &place, data);
        }
        for (
            place,
            StepRule {
                optimizer, whole, ..
            },
            state,
        ) in self.states
        {
            let whole = whole.is_some();
            let mut sink = StateSink::default();
            optimizer.state_flatten(ROOT, &state, &mut sink);
            for (name, data) in sink.tensors {
                let name = optimizer_name(&place.path, &name);
                match whole {
                    // It may have any shape, such as the row and column factors of Adafactor.
                    true => values.tensors.push((name, data)),
                    false => values.push(name, &place, data),
                }
            }
            for (name, scalar) in sink.scalars {
                let value = serde_json::to_value(scalar).unwrap_or_default();
                let name = optimizer_name(&place.path, &name);
                values.scalars.insert(name, value);
            }
        }
        Ok(values)
    }
}

/// The state of a training apart from its model.
pub(in crate::parallel) struct Whole<'a> {
    pub(in crate::parallel) parameters: &'a [ParameterSpec],
    pub(in crate::parallel) optimizer: &'a OptimizerState,
    pub(in crate::parallel) ema: Option<&'a Ema>,
    /// This rank's part of every parameter, if state is sharded.
    pub(in crate::parallel) owned: Option<&'a [Range<usize>]>,
    /// Values of the parameters, if they are not in the model.
    pub(in crate::parallel) pieces: Option<Vec<Tensor<1>>>,
}

/// Takes the share of `rank` among `size` ranks.
///
/// State that all ranks have is divided by whole parameters. Every rank has its shard of sharded
/// state. Rank 0's values of buffers count, so rank 0 has them.
pub(in crate::parallel) fn share<M: Module>(
    model: &M,
    whole: &Whole<'_>,
    rank: usize,
    size: usize,
) -> StateShare {
    // Running statistics keep the last update apart from their value until the next read. `valid`
    // folds it into the state that the model shares with its copy.
    drop(model.valid());
    let sizes = whole.parameters.iter().map(ParameterSpec::num_elements);
    let owners = shard::divide(&sizes.collect::<Vec<_>>(), size);
    let mine = |index: usize| whole.pieces.is_none() && owners.get(index) == Some(&rank);
    let mut take = Take {
        path: Vec::new(),
        container: String::new(),
        mine: &mine,
        buffers: rank == 0,
        next: 0,
        taken: Vec::new(),
    };
    model.visit(&mut take);
    let mut share = StateShare::nothing();
    share.model = take.taken;
    for (index, parameter) in whole.parameters.iter().enumerate() {
        let elements = match whole.owned {
            Some(owned) => owned.get(index).cloned().unwrap_or(0..0),
            None if owners.get(index) == Some(&rank) => 0..parameter.num_elements(),
            None => 0..0,
        };
        // Rank 0 has the empty parameters.
        if !elements.is_empty() || (parameter.num_elements() == 0 && rank == 0) {
            share.push(index, parameter, elements, whole);
        }
    }
    share
}

impl StateShare {
    fn push(
        &mut self,
        index: usize,
        parameter: &ParameterSpec,
        elements: Range<usize>,
        whole: &Whole<'_>,
    ) {
        let place = Owned {
            path: parameter.path.clone(),
            shape: parameter.shape.clone(),
            elements,
        };
        let path = &parameter.path;
        if let Some(piece) = whole.pieces.as_ref().and_then(|all| all.get(index)) {
            let name = model_name(path);
            self.parts.push((name, place.clone(), piece.clone()));
        }
        let name = ema::tensor_name(path);
        if let Some(average) = whole.ema.and_then(|ema| ema.get(index)) {
            self.parts.push((name, place.clone(), average.clone()));
        }
        match (whole.optimizer.state(index), whole.optimizer.choice(index)) {
            (Some(KeptState::Burn(state)), Some(choice)) => {
                self.states.push((place, choice.clone(), state));
            }
            (Some(KeptState::Fused(state)), _) => {
                for (name, values) in state.tensors() {
                    let name = optimizer_name(path, name);
                    self.parts.push((name, place.clone(), values));
                }
                for (name, value) in state.scalars() {
                    self.scalars.insert(optimizer_name(path, name), value);
                }
            }
            _ => {}
        }
    }
}

struct Take<'a> {
    path: Vec<String>,
    /// Type of the container entered last.
    container: String,
    mine: &'a dyn Fn(usize) -> bool,
    buffers: bool,
    /// Index of the next trainable parameter in visit order.
    next: usize,
    taken: Vec<Taken>,
}

impl Take<'_> {
    fn push(&mut self, read: Read, is_fixed: bool) {
        self.taken.push(Taken {
            path: self.path.join("."),
            is_fixed,
            read,
        });
    }
}

impl ModuleVisitor for Take<'_> {
    keeps_path!(and container);

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
            let is_running = !trains && statistics::is_running(self.path.last());
            let dtype = statistics::saved_as(tensor.dtype());
            if is_running && statistics::are_in(&self.container) && dtype != tensor.dtype() {
                tensor = tensor.cast(FloatDType::from(dtype));
            }
            let is_fixed = !trains && !is_running;
            self.push(Box::new(move || tensor.try_into_data()), is_fixed);
        }
    }

    fn visit_int<const D: usize>(&mut self, param: &Param<Tensor<D, Int>>) {
        if self.buffers {
            let tensor = param.base().inner();
            self.push(Box::new(move || tensor.try_into_data()), true);
        }
    }

    fn visit_bool<const D: usize>(&mut self, param: &Param<Tensor<D, Bool>>) {
        if self.buffers {
            let tensor = param.base().inner();
            self.push(Box::new(move || tensor.try_into_data()), true);
        }
    }
}
