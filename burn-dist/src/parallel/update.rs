//! The optimizer's step over all parameters of a model, where every rank steps all of them.

use burn::module::{Module, ModuleMapper, Param};
use burn::tensor::{Shape, Tensor, TensorData};

use super::ParallelError;
use super::ema::Ema;
use super::optimizer::{OptimizerState, Stepping};
use super::replicas::AutodiffPlace;
use super::taken;
use crate::bucket::{Reducer, TOGETHER};

/// Steps every trainable parameter that any rank had a gradient for, the gradients times `factor`,
/// and takes all of them into the average.
pub(super) fn parameters<M: Module>(
    model: M,
    reducer: &Reducer,
    optimizer: &mut OptimizerState,
    ema: Option<&mut Ema>,
    learning_rate: f64,
    factor: Option<f64>,
) -> (M, Result<(), ParallelError>) {
    let ema = ema.map(|ema| {
        let weight = ema.begin_update();
        (ema, weight)
    });
    if reducer.resident().is_some() {
        let stepped = step_there(model, reducer, optimizer, ema, (learning_rate, factor));
        return (stepped, Ok(()));
    }
    let mut update = Update {
        reducer,
        optimizer,
        ema,
        learning_rate,
        factor,
        next: 0,
        outcome: Ok(()),
    };
    let model = model.map(&mut update);
    (model, update.outcome)
}

/// The same on a device whose memory the processor does not share, many parameters at a time.
fn step_there<M: Module>(
    model: M,
    reducer: &Reducer,
    optimizer: &mut OptimizerState,
    mut ema: Option<(&mut Ema, f32)>,
    (learning_rate, factor): (f64, Option<f64>),
) -> M {
    let (model, homes, values) = taken::take_out(model);
    let mut stepped = Vec::with_capacity(values.len());
    let mut values = values.into_iter().enumerate().peekable();
    while values.peek().is_some() {
        let mut numbers = 0;
        let mut together = Vec::new();
        while numbers < TOGETHER
            && let Some((index, values)) = values.next()
        {
            numbers += values.shape().num_elements();
            together.push((index, values));
        }
        let indices: Vec<usize> = together.iter().map(|(index, _)| *index).collect();
        let gradients = reducer.owned_there(&indices);
        let together = together.into_iter().zip(gradients);
        let together = together.map(|((index, values), gradients)| Stepping {
            index,
            shape: homes.shape(index).cloned().unwrap_or(values.shape()),
            values,
            gradients,
        });
        let new = optimizer.step_there(learning_rate, together.collect(), factor);
        let new = (stepped.len()..).zip(new).collect::<Vec<_>>();
        if let Some((ema, weight)) = &mut ema {
            ema.update_on_device(&new, *weight);
        }
        stepped.extend(new.into_iter().map(|(_, values)| values));
    }
    taken::put_back(model, homes, stepped)
}

struct Update<'a> {
    reducer: &'a Reducer,
    optimizer: &'a mut OptimizerState,
    /// The average, and the weight of new values in it.
    ema: Option<(&'a mut Ema, f32)>,
    learning_rate: f64,
    factor: Option<f64>,
    /// Index of the parameter that is visited next.
    next: usize,
    outcome: Result<(), ParallelError>,
}

impl Update<'_> {
    fn gradient(&mut self, index: usize, shape: &Shape) -> Option<TensorData> {
        if self.outcome.is_err() {
            return None;
        }
        match self.reducer.gradient(index, shape) {
            Ok(gradient) => gradient,
            Err(error) => {
                self.outcome = Err(error.into());
                None
            }
        }
    }

    /// Steps a parameter in host memory, where it is.
    fn step_host<const D: usize>(&mut self, index: usize, value: Tensor<D>) -> Tensor<D> {
        let (shape, device, dtype) = (value.shape(), value.device(), value.dtype());
        // The value has no other owner, so on the CPU this copies nothing.
        let stepped = value.try_into_data().map_err(|error| error.to_string());
        let stepped = stepped.and_then(|mut data| {
            let values = data.as_mut_slice::<f32>().map_err(|e| format!("{e:?}"))?;
            let (optimizer, rate, factor) = (&mut *self.optimizer, self.learning_rate, self.factor);
            let outcome = self.reducer.with_owned(index, |gradients| {
                optimizer.step_host(index, rate, values, gradients, factor);
            });
            if let (Err(error), Ok(())) = (outcome, &self.outcome) {
                self.outcome = Err(error.into());
            }
            Ok(data)
        });
        match stepped {
            Ok(data) => Tensor::from_data(data, (&device, dtype)),
            Err(reason) => {
                self.outcome = Err(self.unreadable(index, reason));
                Tensor::zeros(shape, (&device, dtype))
            }
        }
    }

    fn unreadable(&self, index: usize, reason: String) -> ParallelError {
        let spec = self.reducer.parameters().get(index);
        let path = spec.map_or_else(String::new, |spec| spec.path.clone());
        ParallelError::Read { path, reason }
    }

    /// Takes a parameter's new value into the average, and gives it back.
    fn average<const D: usize>(&mut self, index: usize, value: Tensor<D>) -> Tensor<D> {
        let Some((ema, weight)) = &mut self.ema else {
            return value;
        };
        let (shape, device, dtype) = (value.shape(), value.device(), value.dtype());
        // The value has no other owner, so on the CPU this copies nothing.
        match value.try_into_data() {
            Ok(data) => {
                match data.as_slice::<f32>() {
                    Ok(values) => ema.update(index, values, *weight),
                    Err(_) => {
                        let values: Vec<f32> = data.iter::<f32>().collect();
                        ema.update(index, &values, *weight);
                    }
                }
                Tensor::from_data(data, (&device, dtype))
            }
            Err(error) => {
                self.outcome = Err(self.unreadable(index, error.to_string()));
                Tensor::zeros(shape, (&device, dtype))
            }
        }
    }
}

impl ModuleMapper for Update<'_> {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        if !param.is_require_grad() {
            return param;
        }
        let index = self.next;
        self.next += 1;
        if self.optimizer.is_fused(index) && self.outcome.is_ok() {
            return param.map(|value| {
                let place = AutodiffPlace::of(&value);
                let value = self.step_host(index, value.inner());
                place.restore(self.average(index, value))
            });
        }
        let shape = param.lazy_shape();
        let gradient = self.gradient(index, &shape);
        if gradient.is_none() && self.ema.is_none() {
            return param;
        }
        param.map(|value| {
            let place = AutodiffPlace::of(&value);
            let mut value = value.inner();
            if let Some(gradient) = gradient {
                let gradient = Tensor::from_data(gradient, (&value.device(), value.dtype()));
                let (rate, factor) = (self.learning_rate, self.factor);
                value = self.optimizer.step(index, rate, value, gradient, factor);
            }
            place.restore(self.average(index, value))
        })
    }
}
