//! The step of a model that is whole on every rank, on a device whose memory the processor does not
//! share.

use std::collections::BTreeMap;
use std::mem;

use burn::module::Module;
use burn::tensor::Tensor;

use super::Stepper;
use crate::bucket::{BucketLayout, DeviceHandle, Reducer, take_parts};
use crate::parallel::ParallelError;
use crate::parallel::taken;
use crate::zero::start_there;

/// Steps what this rank owns of the parameters, and gathers all of them. A collective call.
pub(super) fn step_model<M: Module>(
    model: M,
    reducer: &Reducer,
    mut stepper: Stepper<'_>,
) -> (M, Result<(), ParallelError>) {
    let (model, homes, mut values) = taken::take_out(model);
    let outcome = step_and_gather(&mut values, reducer, &mut stepper);
    (taken::put_back(model, homes, values), outcome)
}

fn step_and_gather(
    values: &mut [Tensor<1>],
    reducer: &Reducer,
    stepper: &mut Stepper<'_>,
) -> Result<(), ParallelError> {
    // By parameter, what this rank owns of a bucket.
    let mut step = |values: &[Tensor<1>], layout: &BucketLayout| -> BTreeMap<usize, Tensor<1>> {
        let parameters = layout.slots.iter().map(|slot| slot.parameter);
        let own = parameters.filter_map(|parameter| {
            let owned = reducer.owned().get(parameter)?.clone();
            let values = values.get(parameter).filter(|_| !owned.is_empty())?;
            Some((parameter, values.clone().slice(owned)))
        });
        stepper.step_there(own.collect()).into_iter().collect()
    };
    // As in host memory: these first, or one rank after the other would wait.
    let mut whole = BTreeMap::new();
    for layout in reducer.layouts().iter().filter(|layout| layout.is_whole()) {
        whole.append(&mut step(values, layout));
    }
    let mut under_way: Option<(usize, Box<dyn DeviceHandle>)> = None;
    for (bucket, layout) in reducer.layouts().iter().enumerate() {
        let mut stepped = match layout.is_whole() {
            true => BTreeMap::new(),
            false => step(values, layout),
        };
        let started = start_there(reducer, bucket, |parameter| {
            let stepped = stepped.remove(&parameter);
            stepped.or_else(|| whole.remove(&parameter))
        });
        arrive(under_way.take(), values, reducer)?;
        under_way = started.map(|handle| (bucket, handle));
    }
    arrive(under_way, values, reducer)?;
    mem::replace(&mut stepper.outcome, Ok(())).map_err(ParallelError::from)
}

/// Waits for a bucket, and replaces its parameters.
fn arrive(
    bucket: Option<(usize, Box<dyn DeviceHandle>)>,
    values: &mut [Tensor<1>],
    reducer: &Reducer,
) -> Result<(), ParallelError> {
    let Some((bucket, handle)) = bucket else {
        return Ok(());
    };
    let flat = handle.wait()?;
    let slots = reducer.layouts().get(bucket).map_or(&[][..], |b| &b.slots);
    let places: Vec<_> = slots.iter().map(|slot| slot.elements.clone()).collect();
    for (slot, part) in slots.iter().zip(take_parts(flat, &places)) {
        if let Some(values) = values.get_mut(slot.parameter) {
            *values = part;
        }
    }
    Ok(())
}
