//! The optimizer's step over all parameters of a model.
//!
//! - If every rank has the whole state, each rank steps all parameters.
//! - In stages 1 and 2 ranks step their shards of the parameters and gather the new values, bucket
//!   by bucket. One bucket travels while the next is stepped.
//! - In stage 3 ranks have nothing but their shards.

use std::collections::BTreeMap;
use std::mem;

use burn::module::Module;
use burn::tensor::{Shape, Tensor};

use super::ParallelError;
use super::ema::Ema;
use super::optimizer::{OptimizerState, Stepping};
use super::taken;
use crate::bucket::{BucketError, BucketLayout, Gathering, Reducer};
use crate::flat::Part;
use crate::zero::ShardedParameters;

/// Steps this rank's part of the parameters and updates the average.
pub(super) struct Stepper<'a> {
    reducer: &'a Reducer,
    optimizer: &'a mut OptimizerState,
    /// The average, and the weight of new values in it.
    ema: Option<(&'a mut Ema, f32)>,
    learning_rate: f64,
    factor: Option<f64>,
    /// Whether parameters are cut over the ranks.
    cut: bool,
}

impl<'a> Stepper<'a> {
    /// Steps with gradients times `factor`.
    pub(super) fn new(
        reducer: &'a Reducer,
        optimizer: &'a mut OptimizerState,
        ema: Option<&'a mut Ema>,
        (learning_rate, factor): (f64, Option<f64>),
        cut: bool,
    ) -> Self {
        Self {
            reducer,
            optimizer,
            ema: ema.and_then(|ema| {
                let weight = ema.begin_update()?;
                Some((ema, weight))
            }),
            learning_rate,
            factor,
            cut,
        }
    }

    /// Steps parts of parameters in batches that are computed together; returns the new values.
    fn step<'v>(
        &mut self,
        parts: impl Iterator<Item = (usize, Part<'v>)>,
    ) -> Result<Vec<(usize, Tensor<1>)>, BucketError> {
        let mut stepped = Vec::new();
        let (mut together, mut numbers) = (Vec::new(), 0);
        for (index, part) in parts {
            let len = part.elements.len();
            let shape = match self.reducer.parameters().get(index) {
                Some(spec) if !self.cut => Shape::from(spec.shape.clone()),
                _ => self.optimizer.shape(index, len),
            };
            numbers += len;
            together.push(Stepping { index, part, shape });
            if numbers >= self.reducer.together() {
                stepped.append(&mut self.step_together(mem::take(&mut together))?);
                numbers = 0;
            }
        }
        stepped.append(&mut self.step_together(together)?);
        Ok(stepped)
    }

    fn step_together(
        &mut self,
        parameters: Vec<Stepping<'_>>,
    ) -> Result<Vec<(usize, Tensor<1>)>, BucketError> {
        let indices: Vec<usize> = parameters.iter().map(|p| p.index).collect();
        let (rate, factor) = (self.learning_rate, self.factor);
        let values = self
            .optimizer
            .step(self.reducer, rate, parameters, factor)?;
        let stepped: Vec<_> = indices.into_iter().zip(values).collect();
        if let Some((ema, weight)) = &mut self.ema {
            ema.update(self.reducer, &stepped, *weight)?;
        }
        Ok(stepped)
    }

    /// Steps all of `values`, one for each parameter.
    fn step_all(&mut self, values: &mut [Tensor<1>]) -> Result<(), BucketError> {
        let cut = self.cut;
        let parts = values.iter_mut().map(Part::all).enumerate();
        // This rank may own nothing of a parameter that is cut.
        let parts = parts.filter(|(_, part)| !cut || !part.elements.is_empty());
        self.step(parts).map(drop)
    }

    /// Steps this rank's part of a bucket and returns the new values.
    fn step_bucket(
        &mut self,
        layout: &BucketLayout,
        values: &mut [Tensor<1>],
    ) -> Result<BTreeMap<usize, Tensor<1>>, BucketError> {
        let owned = self.reducer.owned();
        let mut values: Vec<_> = values.iter_mut().map(Some).collect();
        let parts = layout.slots.iter().filter_map(|slot| {
            let elements = owned.get(slot.parameter)?.clone();
            let values = values.get_mut(slot.parameter)?.take()?;
            let part = Part { values, elements };
            (!part.elements.is_empty()).then_some((slot.parameter, part))
        });
        Ok(self.step(parts)?.into_iter().collect())
    }

    /// Steps this rank's part of `values`, which hold every parameter, and gathers all of them.
    fn step_and_gather(&mut self, values: &mut [Tensor<1>]) -> Result<(), ParallelError> {
        let reducer = self.reducer;
        let layouts = reducer.layouts();
        // Whole parameters are spread unevenly over the ranks of a bucket. Stepped bucket by
        // bucket, one rank after the other would wait.
        let mut whole = BTreeMap::new();
        for layout in layouts.iter().filter(|layout| layout.is_whole) {
            whole.append(&mut self.step_bucket(layout, values)?);
        }
        let mut under_way: Option<(&BucketLayout, Box<dyn Gathering>)> = None;
        for (bucket, layout) in layouts.iter().enumerate() {
            let mut stepped = match layout.is_whole {
                true => BTreeMap::new(),
                false => self.step_bucket(layout, values)?,
            };
            let gathering = reducer.gather(bucket, |parameter| {
                let stepped = stepped.remove(&parameter);
                stepped.or_else(|| whole.remove(&parameter))
            })?;
            arrive(under_way.replace((layout, gathering)), values)?;
        }
        arrive(under_way, values)
    }
}

/// Waits for a bucket and replaces its parameters.
fn arrive(
    bucket: Option<(&BucketLayout, Box<dyn Gathering>)>,
    values: &mut [Tensor<1>],
) -> Result<(), ParallelError> {
    let Some((layout, mut gathering)) = bucket else {
        return Ok(());
    };
    gathering.wait()?;
    Ok(gathering.replace(layout, values)?)
}

/// Steps a model that is whole on every rank. A collective call if the state is sharded.
pub(super) fn model<M: Module>(
    model: M,
    mut stepper: Stepper<'_>,
) -> (M, Result<(), ParallelError>) {
    let (model, homes, mut values) = taken::take_out(model);
    let outcome = match stepper.cut {
        true => stepper.step_and_gather(&mut values),
        false => stepper.step_all(&mut values).map_err(ParallelError::from),
    };
    (taken::put_back(model, homes, values), outcome)
}

/// Steps parameters that live as shards.
pub(super) fn store(
    store: &ShardedParameters,
    mut stepper: Stepper<'_>,
) -> Result<(), ParallelError> {
    Ok(store.update(|pieces| stepper.step_all(pieces))?)
}
