//! Takes parameters out of their model for a step. A second reference to them would force a copy.

use burn::module::{Module, ModuleMapper, Param};
use burn::tensor::{Shape, Tensor};

use super::replicas::AutodiffPlace;

/// Shapes and autodiff places of parameters, in visit order.
pub(super) type Homes = Vec<(Shape, AutodiffPlace)>;

/// Takes out all trainable parameters, flat and in visit order. The model is unusable until
/// [`put_back`].
pub(super) fn take_out<M: Module>(model: M) -> (M, Homes, Vec<Tensor<1>>) {
    let mut take_out = TakeOut {
        homes: Vec::new(),
        values: Vec::new(),
    };
    let model = model.map(&mut take_out);
    (model, take_out.homes, take_out.values)
}

/// Puts `values`, flat and in visit order, back into the model that parameters were taken out of.
pub(super) fn put_back<M: Module>(model: M, homes: Homes, values: Vec<Tensor<1>>) -> M {
    model.map(&mut PutBack {
        taken: homes.into_iter().zip(values),
    })
}

struct TakeOut {
    homes: Homes,
    values: Vec<Tensor<1>>,
}

impl ModuleMapper for TakeOut {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        if !param.is_require_grad() {
            return param;
        }
        param.map(|value| {
            let place = AutodiffPlace::of(&value);
            let value = value.inner();
            let (shape, device) = (value.shape(), value.device());
            self.values.push(value.reshape([shape.num_elements()]));
            self.homes.push((shape, place.clone()));
            place.restore(Tensor::empty([1; D], &device))
        })
    }
}

struct PutBack<I> {
    taken: I,
}

impl<I: Iterator<Item = ((Shape, AutodiffPlace), Tensor<1>)>> ModuleMapper for PutBack<I> {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        if !param.is_require_grad() {
            return param;
        }
        match self.taken.next() {
            // A parameter that could not be stepped may have no values left: the step has failed.
            Some(((shape, place), values))
                if values.shape().num_elements() == shape.num_elements() =>
            {
                param.map(|_| place.restore(values.reshape(shape)))
            }
            _ => param,
        }
    }
}
