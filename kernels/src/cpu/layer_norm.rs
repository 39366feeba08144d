//! Layer normalisation over the last dimension.

use crate::cpu::elementwise::Rows;
use crate::cpu::kernels::Kernels;
use crate::cpu::parallel::Shared;
use crate::error::{KernelError, length};

const OP: &str = "layer norm";

impl Kernels {
    /// `output = (input − mean) / √(variance + epsilon) · weight + bias`, with mean and (biased)
    /// variance of each row.
    ///
    /// # Errors
    ///
    /// A size of zero, slices whose lengths do not match the shape.
    pub fn layer_norm(
        &self,
        shape: Rows,
        epsilon: f32,
        input: &[f32],
        [weight, bias]: [&[f32]; 2],
        output: &mut [f32],
    ) -> Result<(), KernelError> {
        let elements = shape.elements(OP)?;
        length(OP, "input", input.len(), elements)?;
        length(OP, "weight", weight.len(), shape.columns)?;
        length(OP, "bias", bias.len(), shape.columns)?;
        length(OP, "output", output.len(), elements)?;
        let output = Shared::new(output);
        self.row_pieces(shape, |start, rows| {
            let (weight, bias) = (weight.as_ptr(), bias.as_ptr());
            // SAFETY: pieces are whole rows that do not overlap.
            unsafe {
                let (x, y) = (input.as_ptr().add(start), output.at(start));
                (self.table.layer_norm)(rows, shape.columns, epsilon, x, weight, bias, y);
            }
        });
        Ok(())
    }

    /// The gradients of [`Kernels::layer_norm`]: with respect to its input, weight and bias.
    /// Mean and variance are computed again, which is cheaper than reading them.
    ///
    /// # Errors
    ///
    /// As for [`Kernels::layer_norm`].
    pub fn layer_norm_gradient(
        &self,
        shape: Rows,
        epsilon: f32,
        input: &[f32],
        weight: &[f32],
        gradient: &[f32],
        [input_gradient, weight_gradient, bias_gradient]: [&mut [f32]; 3],
    ) -> Result<(), KernelError> {
        let (elements, columns) = (shape.elements(OP)?, shape.columns);
        length(OP, "input", input.len(), elements)?;
        length(OP, "weight", weight.len(), columns)?;
        length(OP, "gradient", gradient.len(), elements)?;
        length(OP, "input_gradient", input_gradient.len(), elements)?;
        length(OP, "weight_gradient", weight_gradient.len(), columns)?;
        length(OP, "bias_gradient", bias_gradient.len(), columns)?;
        let target = Shared::new(input_gradient);
        let mut both = self.workspace.take(2 * columns);
        self.sum_parts(shape.rows, both.slice(), |start, rows, sums| {
            let start = start * columns;
            // SAFETY: parts are whole rows that do not overlap; `sums` belongs to this part alone.
            unsafe {
                (self.table.layer_norm_gradient)(
                    rows,
                    columns,
                    epsilon,
                    weight.as_ptr(),
                    [input, gradient].map(|slice| slice.as_ptr().add(start)),
                    target.at(start),
                    sums,
                );
            }
        });
        weight_gradient.copy_from_slice(&both.slice()[..columns]);
        bias_gradient.copy_from_slice(&both.slice()[columns..]);
        Ok(())
    }
}
