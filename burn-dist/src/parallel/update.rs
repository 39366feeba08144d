//! The optimizer's step over all parameters of a model.

use burn::module::{Module, ModuleMapper, Param};
use burn::tensor::{Shape, Tensor, TensorData};

use super::ParallelError;
use super::ema::Ema;
use super::optimizer::OptimizerState;
use super::replicas::AutodiffPlace;
use crate::bucket::Reducer;

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
    let mut update = Update {
        reducer,
        optimizer,
        ema: ema.map(|ema| {
            let weight = ema.begin_update();
            (ema, weight)
        }),
        learning_rate,
        factor,
        next: 0,
        outcome: Ok(()),
    };
    let model = model.map(&mut update);
    (model, update.outcome)
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
        match self.reducer.gradient(index, shape, self.factor) {
            Ok(gradient) => gradient,
            Err(error) => {
                self.outcome = Err(error.into());
                None
            }
        }
    }
}

impl Update<'_> {
    /// Takes a parameter's new value into the average, and gives it back.
    fn average<const D: usize>(&mut self, index: usize, value: Tensor<D>) -> Tensor<D> {
        let Some((ema, weight)) = &mut self.ema else {
            return value;
        };
        let (shape, device, dtype) = (value.shape(), value.device(), value.dtype());
        // The value has no other owner, so on the CPU this copies nothing.
        match value.try_into_data() {
            Ok(data) => {
                ema.update(index, &data, *weight);
                Tensor::from_data(data, (&device, dtype))
            }
            Err(error) => {
                let spec = self.reducer.parameters().get(index);
                self.outcome = Err(ParallelError::Read {
                    path: spec.map_or_else(String::new, |spec| spec.path.clone()),
                    reason: error.to_string(),
                });
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
        let gradient = self.gradient(index, &param.lazy_shape());
        if gradient.is_none() && self.ema.is_none() {
            return param;
        }
        param.map(|value| {
            let place = AutodiffPlace::of(&value);
            let mut value = value.inner();
            if let Some(gradient) = gradient {
                let gradient = Tensor::from_data(gradient, (&value.device(), value.dtype()));
                value = self
                    .optimizer
                    .step(index, self.learning_rate, value, gradient);
            }
            place.restore(self.average(index, value))
        })
    }
}
