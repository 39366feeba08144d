//! The step of a model that is whole on every rank, on a device whose memory the processor does not
//! share.

use std::mem;
use std::ops::Range;

use burn::module::{Module, ModuleMapper, Param};
use burn::tensor::{Shape, Tensor};

use super::Stepper;
use crate::bucket::{DeviceHandle, Reducer, Slot};
use crate::parallel::ParallelError;
use crate::parallel::replicas::AutodiffPlace;
use crate::zero::start_there;

/// Steps what this rank owns of the parameters, and gathers all of them. A collective call.
pub(super) fn step_model<M: Module>(
    model: M,
    reducer: &Reducer,
    mut stepper: Stepper<'_>,
) -> (M, Result<(), ParallelError>) {
    let mut taken = Vec::new();
    let model = model.map(&mut TakeOut { taken: &mut taken });
    let outcome = step_and_gather(&mut taken, reducer, &mut stepper);
    taken.reverse();
    (model.map(&mut PutBack { taken: &mut taken }), outcome)
}

fn step_and_gather(
    taken: &mut [Taken],
    reducer: &Reducer,
    stepper: &mut Stepper<'_>,
) -> Result<(), ParallelError> {
    let owned = |parameter: usize| {
        let owned = reducer.owned().get(parameter).cloned();
        owned.filter(|range: &Range<usize>| !range.is_empty())
    };
    let mut step = |taken: &[Taken], parameter: usize| {
        let values = taken.get(parameter)?.values.clone();
        Some(stepper.step_there(parameter, values.slice(owned(parameter)?)))
    };
    // As in host memory: these first, or one rank after the other would wait.
    let mut whole: Vec<Option<Tensor<1>>> = vec![None; taken.len()];
    for layout in reducer.layouts().iter().filter(|layout| layout.is_whole()) {
        for Slot { parameter, .. } in &layout.slots {
            whole[*parameter] = step(taken, *parameter);
        }
    }
    let mut under_way: Option<(usize, Box<dyn DeviceHandle>)> = None;
    for (bucket, layout) in reducer.layouts().iter().enumerate() {
        let started = start_there(reducer, bucket, |parameter| match layout.is_whole() {
            true => whole[parameter].take(),
            false => step(taken, parameter),
        });
        arrive(under_way.take(), taken, reducer)?;
        under_way = started.map(|handle| (bucket, handle));
    }
    arrive(under_way, taken, reducer)?;
    mem::replace(&mut stepper.outcome, Ok(())).map_err(ParallelError::from)
}

/// Waits for a bucket, and replaces its parameters.
fn arrive(
    bucket: Option<(usize, Box<dyn DeviceHandle>)>,
    taken: &mut [Taken],
    reducer: &Reducer,
) -> Result<(), ParallelError> {
    let Some((bucket, handle)) = bucket else {
        return Ok(());
    };
    let flat = handle.wait()?;
    for slot in reducer.layouts().get(bucket).map_or(&[][..], |b| &b.slots) {
        if let Some(taken) = taken.get_mut(slot.parameter) {
            taken.values = flat.clone().slice(slot.elements.clone());
        }
    }
    Ok(())
}

/// A parameter that has left its model for a while.
struct Taken {
    /// Flat.
    values: Tensor<1>,
    shape: Shape,
    place: AutodiffPlace,
}

/// Takes all trainable parameters out, in visit order.
struct TakeOut<'a> {
    taken: &'a mut Vec<Taken>,
}

impl ModuleMapper for TakeOut<'_> {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        if !param.is_require_grad() {
            return param;
        }
        param.map(|value| {
            let place = AutodiffPlace::of(&value);
            let value = value.inner();
            let (shape, device) = (value.shape(), value.device());
            self.taken.push(Taken {
                values: value.reshape([shape.num_elements()]),
                shape,
                place: place.clone(),
            });
            place.restore(Tensor::empty([1; D], &device))
        })
    }
}

/// Puts back what was taken out, the last of `taken` first.
struct PutBack<'a> {
    taken: &'a mut Vec<Taken>,
}

impl ModuleMapper for PutBack<'_> {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        if !param.is_require_grad() {
            return param;
        }
        match self.taken.pop() {
            Some(taken) => param.map(|_| {
                let value = taken.values.reshape(taken.shape);
                taken.place.restore(value)
            }),
            None => param,
        }
    }
}
