//! The optimizer's step where every rank has its shard of the state.
//!
//! Stages 1 and 2: the ranks step their shards of the parameters and gather the new values, bucket
//! by bucket: one is on its way while the next is stepped. Parameters that are not cut are stepped
//! before. Stage 3: the shards are all there is.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;

use burn::module::{Module, ModuleMapper, Param};
use burn::tensor::{DType, Device, ExecutionError, Tensor, TensorData};

use super::ParallelError;
use super::ema::Ema;
use super::optimizer::OptimizerState;
use super::replicas::{self, AutodiffPlace};
use crate::ProcessGroup;
use crate::bucket::{BucketError, ParameterSpec, Reducer, Slot};
use crate::zero::{Gatherer, Store};

/// Steps what this rank owns of one parameter after the other.
pub(super) struct Stepper<'a> {
    reducer: &'a Reducer,
    optimizer: &'a mut OptimizerState,
    /// The average, and the weight of new values in it.
    ema: Option<(&'a mut Ema, f32)>,
    learning_rate: f64,
    factor: Option<f64>,
    outcome: Result<(), BucketError>,
}

impl<'a> Stepper<'a> {
    pub(super) fn new(
        reducer: &'a Reducer,
        optimizer: &'a mut OptimizerState,
        ema: Option<&'a mut Ema>,
        learning_rate: f64,
        factor: Option<f64>,
    ) -> Self {
        Self {
            reducer,
            optimizer,
            ema: ema.map(|ema| {
                let weight = ema.begin_update();
                (ema, weight)
            }),
            learning_rate,
            factor,
            outcome: Ok(()),
        }
    }

    fn step(&mut self, parameter: usize, values: &mut [f32]) {
        if self.outcome.is_err() {
            return;
        }
        let (optimizer, rate, factor) = (&mut *self.optimizer, self.learning_rate, self.factor);
        self.outcome = self.reducer.with_owned(parameter, |gradients| {
            optimizer.step_host(parameter, rate, values, gradients, factor);
        });
        if let Some((ema, weight)) = &mut self.ema {
            ema.update(parameter, values, *weight);
        }
    }
}

/// Steps a model that is whole on every rank. A collective call.
pub(super) fn whole_model<M: Module>(
    model: M,
    group: &ProcessGroup,
    reducer: &Reducer,
    mut stepper: Stepper<'_>,
) -> (M, Result<(), ParallelError>) {
    let mut host = HostValues::default();
    let model = model.map(&mut TakeOut { host: &mut host });
    let mut outcome = host.outcome(reducer.parameters());
    if outcome.is_ok() {
        outcome = step_and_gather(&mut host, group, reducer, &mut stepper);
    }
    host.taken.reverse();
    (model.map(&mut PutBack { host: &mut host }), outcome)
}

fn step_and_gather(
    host: &mut HostValues,
    group: &ProcessGroup,
    reducer: &Reducer,
    stepper: &mut Stepper<'_>,
) -> Result<(), ParallelError> {
    let owned = |parameter: usize| reducer.owned().get(parameter).cloned().unwrap_or(0..0);
    // Of a bucket of whole parameters some ranks have much and others nothing: if they were stepped
    // bucket by bucket, one rank after the other would wait.
    for layout in reducer.layouts().iter().filter(|layout| layout.is_whole()) {
        for Slot { parameter, .. } in &layout.slots {
            let values = host.values_mut(*parameter);
            if let Some(own) = values.and_then(|all| all.get_mut(owned(*parameter)))
                && !own.is_empty()
            {
                stepper.step(*parameter, own);
            }
        }
    }
    let mut gatherer = Gatherer::new(group, reducer);
    for (bucket, layout) in reducer.layouts().iter().enumerate() {
        let started = gatherer.start(bucket, |parameter, own| {
            let values = host.values(parameter);
            if let Some(values) = values.and_then(|all| all.get(owned(parameter))) {
                own.copy_from_slice(values);
            }
            if !layout.is_whole() {
                stepper.step(parameter, own);
            }
        });
        started?;
        gatherer.take(1, |parameter, values| host.replace(parameter, values))?;
    }
    gatherer.take(0, |parameter, values| host.replace(parameter, values))?;
    std::mem::replace(&mut stepper.outcome, Ok(())).map_err(ParallelError::from)
}

/// Steps parameters that live as shards.
pub(super) fn store(store: &Store, mut stepper: Stepper<'_>) -> Result<(), ParallelError> {
    store.update(|pieces| {
        for (parameter, piece) in pieces.iter_mut().enumerate() {
            if !piece.is_empty() {
                // Copies only while a snapshot is being written.
                stepper.step(parameter, Arc::make_mut(piece).as_mut_slice());
            }
        }
    });
    Ok(stepper.outcome?)
}

/// Parameters that have left their model for a while, in visit order.
#[derive(Default)]
struct HostValues {
    taken: Vec<Taken>,
}

struct Taken {
    data: Result<TensorData, ExecutionError>,
    device: Device,
    place: AutodiffPlace,
}

impl HostValues {
    fn outcome(&self, parameters: &[ParameterSpec]) -> Result<(), ParallelError> {
        let failed = |(taken, spec): (&Taken, &ParameterSpec)| {
            let error = taken.data.as_ref().err()?;
            Some(ParallelError::Read {
                path: spec.path.clone(),
                reason: error.to_string(),
            })
        };
        let mut all = self.taken.iter().zip(parameters);
        all.find_map(failed).map_or(Ok(()), Err)
    }

    fn values(&self, parameter: usize) -> Option<&[f32]> {
        let data = self.taken.get(parameter)?.data.as_ref().ok()?;
        data.as_slice::<f32>().ok()
    }

    fn values_mut(&mut self, parameter: usize) -> Option<&mut [f32]> {
        let data = self.taken.get_mut(parameter)?.data.as_mut().ok()?;
        data.as_mut_slice::<f32>().ok()
    }

    fn replace(&mut self, parameter: usize, values: &[f32]) {
        if let Some(own) = self.values_mut(parameter)
            && own.len() == values.len()
        {
            own.copy_from_slice(values);
        }
    }
}

struct TakeOut<'a> {
    host: &'a mut HostValues,
}

impl ModuleMapper for TakeOut<'_> {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        if !param.is_require_grad() {
            return param;
        }
        param.map(|value| {
            let place = AutodiffPlace::of(&value);
            let value = value.inner();
            let device = value.device();
            // The value has no other owner, so on the CPU this copies nothing.
            let data = value.try_into_data();
            self.host.taken.push(Taken {
                data,
                device: device.clone(),
                place: place.clone(),
            });
            place.restore(Tensor::zeros([1; D], &device))
        })
    }
}

/// Puts back what was taken out, the last of `taken` first.
struct PutBack<'a> {
    host: &'a mut HostValues,
}

impl ModuleMapper for PutBack<'_> {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        if !param.is_require_grad() {
            return param;
        }
        match self.host.taken.pop() {
            Some(Taken {
                data: Ok(data),
                device,
                place,
            }) => param.map(|_| place.restore(Tensor::from_data(data, &device))),
            _ => param,
        }
    }
}

/// What this rank owns of every parameter, in visit order.
pub(super) type Pieces = Vec<Arc<Vec<f32>>>;

/// What this rank owns of every trainable parameter of a model.
pub(super) fn pieces_of<M: Module>(
    model: M,
    owned: &[Range<usize>],
) -> (M, Result<Pieces, ParallelError>) {
    cut(model, owned, None)
}

/// Takes all trainable parameters out of a model: of those that rank 0 has every rank gets what it
/// owns, and leaves one element that pretends to have the parameter's shape. One parameter at a time,
/// so that no rank has to hold a whole model whose parameters come to exist when they are first
/// looked at. A collective call.
pub(super) fn take_pieces<M: Module>(
    model: M,
    owned: &[Range<usize>],
    group: &ProcessGroup,
) -> (M, Result<Pieces, ParallelError>) {
    cut(model, owned, Some(group))
}

fn cut<M: Module>(
    model: M,
    owned: &[Range<usize>],
    take: Option<&ProcessGroup>,
) -> (M, Result<Pieces, ParallelError>) {
    let mut cut = Cut {
        path: Vec::new(),
        owned,
        take,
        // All at once: between the values that come and go they would leave holes in the heap.
        empty: owned
            .iter()
            .map(|range| Vec::with_capacity(range.len()))
            .collect(),
        pieces: Vec::new(),
        outcome: Ok(()),
    };
    let model = model.map(&mut cut);
    (model, cut.outcome.map(|()| cut.pieces))
}

struct Cut<'a> {
    path: Vec<String>,
    owned: &'a [Range<usize>],
    /// Whose rank 0 has the values, if they leave the model.
    take: Option<&'a ProcessGroup>,
    /// Memory for the pieces that are still to come.
    empty: VecDeque<Vec<f32>>,
    pieces: Pieces,
    outcome: Result<(), ParallelError>,
}

impl Cut<'_> {
    fn piece(
        &mut self,
        data: Result<TensorData, ExecutionError>,
    ) -> Result<Vec<f32>, ParallelError> {
        let path = &self.path;
        let unreadable = |reason: String| ParallelError::Read {
            path: path.join("."),
            reason,
        };
        let mut data = data.map_err(|error| unreadable(error.to_string()))?;
        if self.take.is_some() && data.dtype() != DType::F32 {
            let dtype = data.dtype();
            return Err(unreadable(format!(
                "it holds {dtype:?}, and only f32 can be sharded"
            )));
        }
        if let Some(group) = self.take {
            let (mut bytes, shape, dtype) = data.into_parts();
            group.broadcast::<u8>(&mut bytes, 0)?;
            data = TensorData::from_bytes(bytes, shape, dtype);
        }
        let owned = self.owned.get(self.pieces.len()).cloned().unwrap_or(0..0);
        let mut piece = self.empty.pop_front().unwrap_or_default();
        match data
            .as_slice::<f32>()
            .map(|values| values.get(owned.clone()))
        {
            Ok(Some(values)) => {
                piece.extend_from_slice(values);
                Ok(piece)
            }
            _ => {
                let values: Vec<f32> = data.iter::<f32>().collect();
                let values = values.get(owned).map(<[f32]>::to_vec);
                values.ok_or_else(|| unreadable("it has too few elements".to_owned()))
            }
        }
    }
}

impl ModuleMapper for Cut<'_> {
    fn enter_module(&mut self, name: &str, _container_type: &str) {
        self.path.push(name.to_owned());
    }

    fn exit_module(&mut self, _name: &str, _container_type: &str) {
        self.path.pop();
    }

    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        if self.outcome.is_err() {
            return param;
        }
        let assumed = replicas::assumed_trainable(&param);
        if !param.is_require_grad() {
            if assumed && self.take.is_some() {
                self.outcome = Err(ParallelError::FrozenUnseen {
                    path: self.path.join("."),
                });
            }
            return param;
        }
        match self.piece(param.base().inner().try_into_data()) {
            Ok(piece) => self.pieces.push(Arc::new(piece)),
            Err(error) => self.outcome = Err(error),
        }
        if self.take.is_none() {
            return param;
        }
        let shape = param.lazy_shape();
        param.map(|value| {
            let place = AutodiffPlace::of(&value);
            let one = Tensor::<D>::zeros([1; D], (&value.device().inner(), value.dtype()));
            place.restore(one.expand(shape))
        })
    }
}
