//! Linear layers: a matrix product with operations before and after it, while the data is in the
//! cache.

use crate::cpu::elementwise::Rows;
use crate::cpu::epilogue::{Beside, Epilogue, Map};
use crate::cpu::kernels::Kernels;
use crate::cpu::matmul::{Matmul, product};
use crate::error::{KernelError, length};

/// Input of a linear layer.
#[derive(Clone, Copy, Debug)]
pub enum Input<'a> {
    /// The values themselves.
    Plain(&'a [f32]),
    /// The GELU of these. It is computed on the way and not kept.
    Gelu(&'a [f32]),
}

impl<'a> Input<'a> {
    fn values(self) -> &'a [f32] {
        match self {
            Self::Plain(values) | Self::Gelu(values) => values,
        }
    }

    fn map(self, kernels: &Kernels) -> Option<Map> {
        matches!(self, Self::Gelu(_)).then_some(kernels.table.gelu)
    }
}

impl Kernels {
    /// [`Kernels::matmul`] with operations before and after it.
    ///
    /// # Errors
    ///
    /// A size of zero, slices whose lengths do not match the shape.
    pub fn linear(
        &self,
        shape: &Matmul,
        left: Input<'_>,
        right: &[f32],
        epilogue: &Epilogue<'_>,
        out: &mut [f32],
    ) -> Result<(), KernelError> {
        let beside = self.beside(shape, left, right, epilogue, out)?;
        product(self, shape, left.values(), right, out, beside)
    }

    /// [`Kernels::matmul_bf16`] with operations before and after it.
    ///
    /// # Errors
    ///
    /// A size of zero, slices whose lengths do not match the shape.
    pub fn linear_bf16(
        &self,
        shape: &Matmul,
        left: Input<'_>,
        right: &[f32],
        epilogue: &Epilogue<'_>,
        out: &mut [f32],
    ) -> Result<(), KernelError> {
        let beside = self.beside(shape, left, right, epilogue, out)?;
        self.rounded_product(shape, left.values(), right, out, beside)
    }

    /// The gradients of a linear layer's weight, as [`Kernels::matmul`] of its transposed input `x`
    /// \[rows, in\] and the gradient `dy` \[rows, out\] of its output, and of its bias, the sums of
    /// the columns of `dy`.
    ///
    /// # Errors
    ///
    /// A size of zero, slices whose lengths do not match the shape.
    pub fn linear_gradients(
        &self,
        size: [usize; 3],
        x: Input<'_>,
        dy: &[f32],
        weight_gradient: &mut [f32],
        bias_gradient: &mut [f32],
    ) -> Result<(), KernelError> {
        let (shape, beside) = self.of_gradients(size, x, dy, weight_gradient, bias_gradient)?;
        product(self, &shape, x.values(), dy, weight_gradient, beside)
    }

    /// [`Kernels::linear_gradients`] as [`Kernels::matmul_bf16`].
    ///
    /// # Errors
    ///
    /// A size of zero, slices whose lengths do not match the shape.
    pub fn linear_gradients_bf16(
        &self,
        size: [usize; 3],
        x: Input<'_>,
        dy: &[f32],
        weight_gradient: &mut [f32],
        bias_gradient: &mut [f32],
    ) -> Result<(), KernelError> {
        let (shape, beside) = self.of_gradients(size, x, dy, weight_gradient, bias_gradient)?;
        self.rounded_product(&shape, x.values(), dy, weight_gradient, beside)
    }

    /// Checks the lengths of a layer.
    fn beside<'a>(
        &self,
        shape: &Matmul,
        left: Input<'_>,
        right: &[f32],
        epilogue: &Epilogue<'a>,
        out: &[f32],
    ) -> Result<Beside<'a>, KernelError> {
        shape.check(left.values(), right, out)?;
        epilogue.check(Rows {
            rows: shape.rows,
            columns: shape.columns,
        })?;
        Ok(Beside {
            epilogue: *epilogue,
            map: left.map(self),
            sums: None,
        })
    }

    /// Checks the lengths of the gradients of a layer and returns their product.
    fn of_gradients<'a>(
        &self,
        [rows, inputs, outputs]: [usize; 3],
        x: Input<'_>,
        dy: &[f32],
        weight_gradient: &[f32],
        bias_gradient: &'a mut [f32],
    ) -> Result<(Matmul, Beside<'a>), KernelError> {
        let shape = Matmul {
            rows: inputs,
            columns: outputs,
            depth: rows,
            left_transposed: true,
            right_transposed: false,
        };
        shape.check(x.values(), dy, weight_gradient)?;
        length("linear", "bias_gradient", bias_gradient.len(), outputs)?;
        let beside = Beside {
            map: x.map(self),
            sums: Some(bias_gradient),
            ..Beside::default()
        };
        Ok((shape, beside))
    }
}
