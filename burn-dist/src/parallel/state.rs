//! The state of a training as named tensors: taken out without stopping it, and put back.
//!
//! Parameters are known by their path in the module, because parameter ids differ between ranks
//! and runs.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use burn::module::{Module, ModuleMapper, ModuleVisitor, Param};
use burn::optim::{DynState, StateSink, StateSource};
use burn::tensor::{Bool, Device, ExecutionError, FloatDType, Int, Tensor, TensorData};
use serde_json::Value;

use super::ema::{self, Ema};
use super::groups::Choice;
use super::optimizer::{Kept, OptimizerState};
use super::replicas::AutodiffPlace;
use super::{ParallelError, ParameterSpec, statistics};
use crate::shard;

/// Name under which an optimizer's state is flattened.
const ROOT: &str = "state";

/// Reads one tensor's values; moves to another thread before it does.
type Values = Box<dyn FnOnce() -> Result<TensorData, ExecutionError> + Send>;

/// This rank's share of the state of a training, as it was at one step: every element is in the
/// share of one rank.
///
/// Taking it copies nothing; [`read`](Self::read) does, in any thread, while training goes on. On a GPU
/// it is read when it is taken.
pub struct StateShare {
    model: Vec<(String, Values)>,
    states: Vec<(Place, Choice, DynState)>,
    /// Values in host memory, with the names of their tensors.
    parts: Vec<(String, Place, Arc<Vec<f32>>)>,
    scalars: BTreeMap<String, Value>,
    /// Everything, where it has been read already.
    settled: Option<Result<StateValues, ParallelError>>,
}

/// The elements of a parameter that something belongs to.
#[derive(Clone)]
struct Place {
    path: String,
    shape: Vec<usize>,
    elements: Range<usize>,
}

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

impl StateValues {
    fn push(&mut self, name: String, place: &Place, data: TensorData) {
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

impl StateShare {
    /// Nothing: what this rank has is in another rank's share.
    pub(super) fn nothing() -> Self {
        Self {
            model: Vec::new(),
            states: Vec::new(),
            parts: Vec::new(),
            scalars: BTreeMap::new(),
            settled: None,
        }
    }

    /// Adds numbers under a name of their own.
    pub(super) fn add_scalars(&mut self, prefix: &str, scalars: Vec<(String, Value)>) {
        let named = |(name, value)| (format!("{prefix}/{name}"), value);
        self.scalars.extend(scalars.into_iter().map(named));
    }

    /// Reads the values now, into memory of their own: what a GPU gives may be a view of its memory,
    /// where the next steps change it.
    pub(super) fn settle(self) -> Self {
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
    /// A tensor whose values the device does not give.
    pub fn read(self) -> Result<StateValues, ParallelError> {
        if let Some(settled) = self.settled {
            return settled;
        }
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
        for (name, place, part) in self.parts {
            let data = TensorData::new(part.to_vec(), [part.len()]);
            values.push(name, &place, data);
        }
        for (
            place,
            Choice {
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
                    // Of any shape, such as the rows' and columns' factors of Adafactor.
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

/// What a training consists of, apart from its model.
pub(super) struct Whole<'a> {
    pub(super) parameters: &'a [ParameterSpec],
    pub(super) optimizer: &'a OptimizerState,
    pub(super) ema: Option<&'a Ema>,
    /// What this rank owns of every parameter, if state is sharded.
    pub(super) owned: Option<&'a [Range<usize>]>,
    /// Their values, if they are not in the model.
    pub(super) pieces: Option<Vec<Arc<Vec<f32>>>>,
}

/// Takes the share of `rank` among `size` ranks. What all ranks have is divided by whole
/// parameters; of what is sharded every rank has its shard. Buffers go to rank 0, whose values
/// count.
pub(super) fn share<M: Module>(
    model: &M,
    whole: &Whole<'_>,
    rank: usize,
    size: usize,
) -> StateShare {
    // Running statistics keep the last update apart from their value until they are next read.
    // `valid` folds it in, in the state that the model shares with its copy.
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
        // An empty parameter is the business of rank 0.
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
        let place = Place {
            path: parameter.path.clone(),
            shape: parameter.shape.clone(),
            elements,
        };
        let path = &parameter.path;
        if let Some(piece) = whole.pieces.as_ref().and_then(|all| all.get(index)) {
            let name = model_name(path);
            self.parts.push((name, place.clone(), piece.clone()));
        }
        if let Some(average) = whole.ema.and_then(|ema| ema.values(index)) {
            let name = ema::tensor_name(path);
            self.parts.push((name, place.clone(), average));
        }
        match (whole.optimizer.state(index), whole.optimizer.choice(index)) {
            (Some(Kept::Burn(state)), Some(choice)) => {
                self.states.push((place, choice.clone(), state));
            }
            (Some(Kept::Fused(state)), _) => {
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

/// Replaces all tensors of `model` by those of `source`, but leaves trainable parameters alone if
/// they are `elsewhere`.
pub(super) fn restore_model<M: Module>(
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
    elsewhere: bool,
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
        if self.elsewhere && param.is_require_grad() {
            self.unused.remove(&self.path.join("."));
            return param;
        }
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

/// What this rank owns of the parameters themselves.
pub(super) fn restore_pieces(
    parameters: &[ParameterSpec],
    owned: &[Range<usize>],
    source: &dyn StateSourceRead,
) -> Result<Vec<Arc<Vec<f32>>>, ParallelError> {
    let read = |(parameter, owned): (&ParameterSpec, &Range<usize>)| {
        let values = read_owned(source, &model_name(&parameter.path), parameter, owned);
        values
            .map(Arc::new)
            .map_err(|reason| ParallelError::Restore {
                path: parameter.path.clone(),
                reason,
            })
    };
    parameters.iter().zip(owned).map(read).collect()
}

/// Rebuilds the state that the optimizer has of what this rank owns from `source`; a parameter of
/// which it has nothing starts without. Of parameters that are `cut` over the ranks, Burn's
/// element-wise optimizers see the part that this rank owns, flat; of others the whole in its shape.
pub(super) fn restore_optimizer(
    parameters: &[ParameterSpec],
    owned: &[Range<usize>],
    optimizer: &mut OptimizerState,
    source: &dyn StateSourceRead,
    device: &Device,
    cut: bool,
) -> Result<(), ParallelError> {
    let names = source.names();
    for (index, (parameter, owned)) in parameters.iter().zip(owned).enumerate() {
        let failed = |reason: String| ParallelError::Restore {
            path: parameter.path.clone(),
            reason,
        };
        if owned.is_empty() && parameter.num_elements() > 0 {
            optimizer.set_state(index, None);
            continue;
        }
        let choice = optimizer.choice(index);
        let flat = cut && choice.is_some_and(|choice| choice.whole.is_none());
        let saved = Saved::of(parameter, &names, source, flat);
        let state = match choice {
            Some(choice) if !saved.is_empty() => Some(saved.restore(choice, owned, device)),
            _ => None,
        };
        optimizer.set_state(index, state.transpose().map_err(failed)?);
    }
    Ok(())
}

/// What a source has of the optimizer's state of one parameter.
struct Saved<'a> {
    parameter: &'a ParameterSpec,
    source: &'a dyn StateSourceRead,
    flat: bool,
    /// The optimizer's name of each tensor, and its name in the source.
    tensors: Vec<(&'a str, &'a str)>,
    scalars: BTreeMap<String, Value>,
}

impl<'a> Saved<'a> {
    fn of(
        parameter: &'a ParameterSpec,
        names: &'a [String],
        source: &'a dyn StateSourceRead,
        flat: bool,
    ) -> Self {
        let prefix = optimizer_name(&parameter.path, "");
        let leaf = |name: &'a str| Some((name.strip_prefix(&prefix)?, name));
        let scalar = |(name, value): (&String, &Value)| {
            Some((name.strip_prefix(&prefix)?.to_owned(), value.clone()))
        };
        Self {
            parameter,
            source,
            flat,
            tensors: names.iter().filter_map(|name| leaf(name)).collect(),
            scalars: source.scalars().iter().filter_map(scalar).collect(),
        }
    }

    fn is_empty(&self) -> bool {
        self.tensors.is_empty() && self.scalars.is_empty()
    }

    fn restore(
        &self,
        choice: &Choice,
        owned: &Range<usize>,
        device: &Device,
    ) -> Result<Kept, String> {
        match &choice.fused {
            Some(fused) => {
                let mut tensors = BTreeMap::new();
                for (leaf, name) in &self.tensors {
                    let values = read_owned(self.source, name, self.parameter, owned)?;
                    tensors.insert((*leaf).to_owned(), values);
                }
                fused
                    .restore(tensors, &self.scalars)
                    .map(Kept::Fused)
                    .ok_or_else(another_optimizer)
            }
            None => self.rebuild(choice, owned, device).map(Kept::Burn),
        }
    }

    /// Lets Burn's optimizer build its state.
    fn rebuild(
        &self,
        choice: &Choice,
        owned: &Range<usize>,
        device: &Device,
    ) -> Result<DynState, String> {
        let under_root = |leaf: &str| format!("{ROOT}.{leaf}");
        let mut wanted = BTreeSet::new();
        let mut scalars = BTreeMap::new();
        for (leaf, value) in &self.scalars {
            let value = serde_json::from_value(value.clone())
                .map_err(|error| format!("`{leaf}` is no number: {error}"))?;
            scalars.insert(under_root(leaf), value);
            wanted.insert(under_root(leaf));
        }
        let mut state = StateSource::new(scalars);
        for (leaf, name) in &self.tensors {
            let data = match self.flat {
                true => self.source.read_part(name, owned.clone())?,
                false => self.source.read(name)?,
            };
            state.insert_tensor(under_root(leaf), data);
            wanted.insert(under_root(leaf));
        }
        let rank = match self.flat {
            true => 1,
            false => self.parameter.shape.len(),
        };
        // An optimizer leaves out what it does not know, so what it made of it is looked at.
        let rebuilt = catch_unwind(AssertUnwindSafe(|| {
            let optimizer = &choice.optimizer;
            let rebuilt = optimizer.state_unflatten(rank, ROOT, &mut state, device)?;
            let mut sink = StateSink::default();
            optimizer.state_flatten(ROOT, &rebuilt, &mut sink);
            let tensors = sink.tensors.into_iter().map(|(name, _)| name);
            let scalars = sink.scalars.into_iter().map(|(name, _)| name);
            (tensors.chain(scalars).collect::<BTreeSet<_>>() == wanted).then_some(rebuilt)
        }));
        rebuilt.ok().flatten().ok_or_else(another_optimizer)
    }
}

fn another_optimizer() -> String {
    "the checkpoint's optimizer state is that of another optimizer".to_owned()
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
