//! The optimizer's step where every rank has its shard of the state.
//!
//! Stages 1 and 2: the ranks step their shards of the parameters and gather the new values, bucket
//! by bucket: one is on its way while the next is stepped. Parameters that are not cut are stepped
//! before. Stage 3: the shards are all there is.
//!
//! `host` and `device` have stages 1 and 2 for where the model is, and `cut` makes the first shards.

mod cut;
mod device;
mod host;

use std::mem;

use burn::module::Module;
use burn::tensor::Tensor;

use super::ParallelError;
use super::ema::Ema;
use super::optimizer::{OptimizerState, Stepping};
use crate::ProcessGroup;
use crate::bucket::{BucketError, Reducer, TOGETHER};
use crate::values::Values;
use crate::zero::Store;

pub(super) use cut::{pieces_of, take_pieces};

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

    /// The same of values on a device, of several parameters by their indices.
    fn step_there(&mut self, parameters: Vec<(usize, Tensor<1>)>) -> Vec<(usize, Tensor<1>)> {
        let indices: Vec<usize> = parameters.iter().map(|(index, _)| *index).collect();
        let gradients = self.reducer.owned_there(&indices);
        let stepping = parameters.into_iter().zip(gradients);
        let stepping = stepping.map(|((index, values), gradients)| Stepping {
            index,
            shape: self.optimizer.shape(index, values.shape().num_elements()),
            values,
            gradients,
        });
        let stepping = stepping.collect();
        let (rate, factor) = (self.learning_rate, self.factor);
        let values = self.optimizer.step_there(rate, stepping, factor);
        let stepped: Vec<(usize, Tensor<1>)> = indices.into_iter().zip(values).collect();
        if let Some((ema, weight)) = &mut self.ema {
            ema.update_on_device(&stepped, *weight);
        }
        stepped
    }
}

/// Steps a model that is whole on every rank. A collective call.
pub(super) fn whole_model<M: Module>(
    model: M,
    group: &ProcessGroup,
    reducer: &Reducer,
    stepper: Stepper<'_>,
) -> (M, Result<(), ParallelError>) {
    match reducer.resident() {
        Some(_) => device::step_model(model, reducer, stepper),
        None => host::step_model(model, group, reducer, stepper),
    }
}

/// Steps parameters that live as shards.
pub(super) fn store(store: &Store, mut stepper: Stepper<'_>) -> Result<(), ParallelError> {
    store.update(|pieces| {
        let (mut there, mut numbers) = (Vec::new(), 0);
        for parameter in 0..pieces.len() {
            match pieces[parameter].take() {
                Values::Device(values) => {
                    numbers += values.shape().num_elements();
                    there.push((parameter, *values));
                }
                mut values => {
                    if !values.is_empty() {
                        stepper.step(parameter, values.host_mut());
                    }
                    pieces[parameter] = values;
                }
            }
            if numbers >= TOGETHER || parameter + 1 == pieces.len() {
                for (parameter, values) in stepper.step_there(mem::take(&mut there)) {
                    pieces[parameter] = Values::on_device(values);
                }
                numbers = 0;
            }
        }
    });
    Ok(stepper.outcome?)
}
