//! What follows a product of matrices: bias, residual and ReLU, in one pass over the result.

use burn::backend::flex::FlexTensor;

use super::tensor::numbers;
use crate::{KernelError, Kernels, Rows};

/// Which of them there are.
#[derive(Clone, Copy)]
pub(super) struct Epilogue {
    pub bias: bool,
    pub residual: bool,
    pub relu: bool,
}

impl Epilogue {
    /// Applies them to `out`, rows of `columns` elements; `inputs` are the bias and the residual, as
    /// far as there are any.
    pub fn apply(
        self,
        kernels: &Kernels,
        inputs: &[FlexTensor],
        columns: usize,
        out: &mut [f32],
    ) -> Result<(), KernelError> {
        if !(self.bias || self.residual || self.relu) {
            return Ok(());
        }
        let bias = inputs.first().filter(|_| self.bias);
        let residual = inputs.last().filter(|_| self.residual);
        let zeros;
        let bias = match bias {
            Some(bias) => numbers(bias)?,
            None => {
                zeros = vec![0.0; columns];
                &zeros
            }
        };
        let rows = Rows {
            rows: out.len() / columns.max(1),
            columns,
        };
        let residual = residual.map(numbers).transpose()?;
        kernels.add_bias(rows, out, bias, residual, self.relu)
    }
}
