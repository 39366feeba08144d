//! The step of a model that is whole on every rank, in host memory.

use std::mem;

use burn::module::{Module, ModuleMapper, Param};
use burn::tensor::{Device, ExecutionError, Tensor, TensorData};

use super::Stepper;
use crate::ProcessGroup;
use crate::bucket::{ParameterSpec, Reducer, Slot};
use crate::parallel::ParallelError;
use crate::parallel::replicas::AutodiffPlace;
use crate::zero::Gatherer;

/// Steps a model that is whole on every rank. A collective call.
pub(super) fn step_model<M: Module>(
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
    mem::replace(&mut stepper.outcome, Ok(())).map_err(ParallelError::from)
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
            }) => param.map(|_| {
                let dtype = data.dtype();
                place.restore(Tensor::from_data(data, (&device, dtype)))
            }),
            _ => param,
        }
    }
}
