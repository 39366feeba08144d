//! GELU, and the sum at the end of a residual block.

use burn::backend::flex::FlexTensor;
use burn::tensor::Tensor;

use super::conv::pixels;
use super::operation::{Operation, Saved, To, apply, exactly};
use super::tensor::{changed, filled, numbers};
use crate::KernelError;
use crate::cpu::{Epilogue, Kernels};

/// Computes `x · Φ(x)`, GELU with the exact normal distribution.
pub fn gelu<const D: usize>(x: Tensor<D>) -> Tensor<D> {
    apply(Gelu, x.into_dispatch(), vec![])
}

/// Computes `a + b`, then ReLU if requested.
///
/// # Panics
///
/// Panics if the shapes differ.
pub fn add<const D: usize>(a: Tensor<D>, b: Tensor<D>, relu: bool) -> Tensor<D> {
    apply(Add { relu }, a.into_dispatch(), vec![b.into_dispatch()])
}

#[derive(Debug)]
struct Gelu;

impl Operation for Gelu {
    fn forward(&self, kernels: &Kernels, inputs: &[FlexTensor]) -> Result<FlexTensor, KernelError> {
        let [x] = exactly(inputs)?;
        filled(x.layout().shape().clone(), |out| {
            kernels.gelu(numbers(x)?, out)
        })
    }

    fn backward(&self, saved: Saved, dy: FlexTensor, to: &mut To<'_>) -> Result<(), KernelError> {
        let kernels = to.kernels;
        let x = saved.input(0)?;
        let slope = Epilogue {
            gelu_input: Some(numbers(x)?),
            ..Epilogue::default()
        };
        let dx = changed(dy, |dx| kernels.finish(pixels(x), dx, &slope));
        to.give(0, dx?)
    }

    fn reads(&self, _index: usize) -> bool {
        true
    }

    fn is_cheap(&self) -> bool {
        true
    }
}

#[derive(Debug)]
struct Add {
    relu: bool,
}

impl Operation for Add {
    fn forward(&self, kernels: &Kernels, inputs: &[FlexTensor]) -> Result<FlexTensor, KernelError> {
        let [a, b] = exactly(inputs)?;
        filled(a.layout().shape().clone(), |out| {
            let sum = Epilogue {
                bias: None,
                residual: Some(numbers(b)?),
                relu: self.relu,
                ..Epilogue::default()
            };
            kernels.finish_copy(pixels(a), numbers(a)?, out, &sum)
        })
    }

    fn backward(&self, saved: Saved, dy: FlexTensor, to: &mut To<'_>) -> Result<(), KernelError> {
        let dy = to.before_relu(self.relu, &saved, dy)?;
        to.give(0, dy.clone())?;
        to.give(1, dy)
    }

    fn reads_output(&self) -> bool {
        self.relu
    }
}
