//! Bias, residual and ReLU as inputs of an operation.

use burn::backend::flex::FlexTensor;
use burn::tensor::{DispatchTensor, Tensor};

use super::tensor::numbers;
use crate::KernelError;

/// The operations that are present.
#[derive(Clone, Copy, Debug)]
pub(super) struct EpilogueInputs {
    pub bias: bool,
    pub residual: bool,
    pub relu: bool,
}

impl EpilogueInputs {
    /// The inputs of a layer after its first: the weight, and the bias and the residual if present.
    pub fn new<const W: usize, const D: usize>(
        weight: Tensor<W>,
        bias: Option<Tensor<1>>,
        residual: Option<Tensor<D>>,
        relu: bool,
    ) -> (Self, Vec<DispatchTensor>) {
        let present = Self {
            bias: bias.is_some(),
            residual: residual.is_some(),
            relu,
        };
        let mut inputs = vec![weight.into_dispatch()];
        inputs.extend(bias.map(Tensor::into_dispatch));
        inputs.extend(residual.map(Tensor::into_dispatch));
        (present, inputs)
    }

    /// Index of the residual among the inputs of the layer.
    pub fn residual(self) -> Option<usize> {
        self.residual.then_some(2 + usize::from(self.bias))
    }

    /// Converts to the kernels' form; `inputs` are the bias and the residual, if present.
    pub fn of(self, inputs: &[FlexTensor]) -> Result<crate::cpu::Epilogue<'_>, KernelError> {
        let bias = inputs.first().filter(|_| self.bias);
        let residual = inputs.last().filter(|_| self.residual);
        Ok(crate::cpu::Epilogue {
            bias: bias.map(numbers).transpose()?,
            residual: residual.map(numbers).transpose()?,
            relu: self.relu,
            ..crate::cpu::Epilogue::default()
        })
    }
}
