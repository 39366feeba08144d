//! The optimizer's step over all parameters of a model.

use burn::module::{Module, ModuleMapper, Param};
use burn::tensor::{Shape, Tensor, TensorData};

use super::ParallelError;
use super::optimizer::OptimizerState;
use super::replicas::AutodiffPlace;
use crate::bucket::Reducer;

/// Steps every trainable parameter that any rank had a gradient for, the gradients times `factor`.
pub(super) fn parameters<M: Module>(
    model: M,
    reducer: &Reducer,
    optimizer: &mut OptimizerState,
    learning_rate: f64,
    factor: Option<f64>,
) -> (M, Result<(), ParallelError>) {
    let mut update = Update {
        reducer,
        optimizer,
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

impl ModuleMapper for Update<'_> {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        if !param.is_require_grad() {
            return param;
        }
        let index = self.next;
        self.next += 1;
        let Some(gradient) = self.gradient(index, &param.lazy_shape()) else {
            return param;
        };
        param.map(|value| {
            let place = AutodiffPlace::of(&value);
            let value = value.inner();
            let gradient = Tensor::from_data(gradient, (&value.device(), value.dtype()));
            place.restore(
                self.optimizer
                    .step(index, self.learning_rate, value, gradient),
            )
        })
    }
}
