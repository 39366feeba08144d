//! Bias, residual and ReLU as inputs of an operation.

use burn::backend::flex::FlexTensor;

use super::tensor::numbers;
use crate::KernelError;

/// The operations that are present.
#[derive(Clone, Copy)]
pub(super) struct EpilogueInputs {
    pub bias: bool,
    pub residual: bool,
    pub relu: bool,
}

impl EpilogueInputs {
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
