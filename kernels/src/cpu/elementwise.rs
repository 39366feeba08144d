//! Operations on single elements, and on rows that share a bias.

use crate::cpu::kernels::Kernels;
use crate::cpu::parallel::{Shared, each, piece, rows_per_part, rows_per_piece};
use crate::cpu::vector::dropout::Mask;
use crate::error::{KernelError, length, volume};

/// Shape of a matrix \[rows, columns\]; all dimensions except the last count as rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Rows {
    /// Rows.
    pub rows: usize,
    /// Columns.
    pub columns: usize,
}

impl Rows {
    pub(crate) fn elements(self, op: &'static str) -> Result<usize, KernelError> {
        volume(op, &[("rows", self.rows), ("columns", self.columns)])
    }
}

impl Kernels {
    /// Computes `output = input · Φ(input)`, GELU with the exact normal distribution.
    ///
    /// # Errors
    ///
    /// Fails if the slices have different lengths.
    pub fn gelu(&self, input: &[f32], output: &mut [f32]) -> Result<(), KernelError> {
        length("gelu", "output", output.len(), input.len())?;
        let target = Shared::new(output);
        self.pieces(input.len(), |start, count| {
            // SAFETY: pieces do not overlap and lie within both slices.
            unsafe { (self.table.gelu)(count, input.as_ptr().add(start), target.at(start)) };
        });
        Ok(())
    }

    /// Sets each number to zero with the probability `rate` and divides the others by `1 − rate`
    /// (Srivastava et al. 2014, <https://jmlr.org/papers/v15/srivastava14a.html>). The choice
    /// depends only on `seed` and the positions, so the same call on the gradient is the backward
    /// pass.
    ///
    /// # Errors
    ///
    /// Slices of different lengths, a rate outside of 0 to 1.
    pub fn dropout(
        &self,
        rate: f64,
        seed: u64,
        input: &[f32],
        output: &mut [f32],
    ) -> Result<(), KernelError> {
        const OP: &str = "dropout";
        length(OP, "output", output.len(), input.len())?;
        if !(0.0..1.0).contains(&rate) {
            return Err(KernelError::Range {
                op: OP,
                what: "rate",
                range: "0 to below 1",
            });
        }
        let target = Shared::new(output);
        self.pieces(input.len(), |start, count| {
            // An odd factor spreads the pieces over all keys.
            let key = seed ^ (start as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
            let mask = Mask {
                key: [key as u32, (key >> 32) as u32],
                threshold: (rate * 2f64.powi(32)) as u32,
                factor: (1.0 / (1.0 - rate)) as f32,
            };
            // SAFETY: pieces do not overlap and lie within both slices.
            unsafe {
                let x = input.as_ptr().add(start);
                (self.table.dropout)(count, &mask, x, target.at(start));
            }
        });
        Ok(())
    }

    /// Transposes `batch` matrices: `input` is \[batch, rows, columns\], `output` \[batch, columns,
    /// rows\]. It converts images from channels first to channels last and back.
    ///
    /// # Errors
    ///
    /// A size of zero, slices whose lengths do not match the shape.
    pub fn transpose(
        &self,
        batch: usize,
        shape: Rows,
        input: &[f32],
        output: &mut [f32],
    ) -> Result<(), KernelError> {
        const OP: &str = "transpose";
        let Rows { rows, columns } = shape;
        let elements = volume(
            OP,
            &[("batch", batch), ("rows", rows), ("columns", columns)],
        )?;
        length(OP, "input", input.len(), elements)?;
        length(OP, "output", output.len(), elements)?;
        let target = Shared::new(output);
        each(batch, |index| {
            let start = index * rows * columns;
            // SAFETY: every index has its own matrices.
            unsafe {
                let from = input.as_ptr().add(start);
                (self.table.transpose)(rows, columns, from, columns, target.at(start), rows);
            }
        });
        Ok(())
    }

    /// Computes the gradient of [`Kernels::gelu`] with respect to its input.
    ///
    /// # Errors
    ///
    /// Fails if the slices have different lengths.
    pub fn gelu_gradient(
        &self,
        input: &[f32],
        gradient: &[f32],
        input_gradient: &mut [f32],
    ) -> Result<(), KernelError> {
        length("gelu", "gradient", gradient.len(), input.len())?;
        length("gelu", "input_gradient", input_gradient.len(), input.len())?;
        let target = Shared::new(input_gradient);
        self.pieces(input.len(), |start, count| {
            let (x, dy) = (input[start..].as_ptr(), gradient[start..].as_ptr());
            // SAFETY: pieces do not overlap and lie within all slices.
            unsafe { (self.table.gelu_gradient)(count, x, dy, target.at(start)) };
        });
        Ok(())
    }

    /// The gradient of a bias: the sums of the columns of `gradient`.
    ///
    /// # Errors
    ///
    /// A size of zero, slices whose lengths do not match the shape.
    pub fn bias_gradient(
        &self,
        shape: Rows,
        gradient: &[f32],
        bias_gradient: &mut [f32],
    ) -> Result<(), KernelError> {
        const OP: &str = "bias";
        length(OP, "gradient", gradient.len(), shape.elements(OP)?)?;
        length(OP, "bias_gradient", bias_gradient.len(), shape.columns)?;
        let columns = shape.columns;
        self.sum_parts(shape.rows, bias_gradient, |start, rows, sums| {
            let values = gradient[start * columns..].as_ptr();
            // SAFETY: the rows lie within the gradient; `sums` belongs to this part alone.
            unsafe { (self.table.column_sums)(rows, columns, values, sums) };
        });
        Ok(())
    }

    /// Sets `gradient` to zero where `output`, the result of ReLU, is not positive.
    ///
    /// # Errors
    ///
    /// Slices of different lengths.
    pub fn relu_gradient(&self, output: &[f32], gradient: &mut [f32]) -> Result<(), KernelError> {
        length("relu", "gradient", gradient.len(), output.len())?;
        let target = Shared::new(gradient);
        self.pieces(output.len(), |start, count| {
            let output = output[start..].as_ptr();
            // SAFETY: pieces do not overlap and lie within both slices.
            unsafe { (self.table.relu_gradient)(count, output, target.at(start)) };
        });
        Ok(())
    }

    /// Calls `run` with start and length of every piece of `count` elements.
    pub(crate) fn pieces(&self, count: usize, run: impl Fn(usize, usize) + Sync + Send) {
        let size = rows_per_piece(1);
        each(count.div_ceil(size), |index| {
            let range = piece(index, size, count);
            run(range.start, range.len());
        });
    }

    /// Calls `run` with the first element and the number of rows of every piece of a matrix.
    pub(crate) fn row_pieces(&self, shape: Rows, run: impl Fn(usize, usize) + Sync + Send) {
        let size = rows_per_piece(shape.columns);
        each(shape.rows.div_ceil(size), |index| {
            let range = piece(index, size, shape.rows);
            run(range.start * shape.columns, range.len());
        });
    }

    /// Sums over rows in a fixed number of parts. Calls `run` with the first row, the number of
    /// rows and the address of sums initialised to zero, and writes the total of all parts to
    /// `result`.
    pub(crate) fn sum_parts(
        &self,
        rows: usize,
        result: &mut [f32],
        run: impl Fn(usize, usize, *mut f32) + Sync + Send,
    ) {
        let size = rows_per_part(rows);
        let parts = rows.div_ceil(size);
        self.sum_of(parts, result, |sums| {
            each(parts, |index| {
                let range = piece(index, size, rows);
                run(range.start, range.len(), sums(index));
            });
        });
    }

    /// Writes the sum of `parts` vectors as long as `result` to it. `fill` gets the address of each
    /// vector by its number; all are initialised to zero.
    pub(crate) fn sum_of<R>(
        &self,
        parts: usize,
        result: &mut [f32],
        fill: impl FnOnce(&(dyn Fn(usize) -> *mut f32 + Sync)) -> R,
    ) -> R {
        // Whole cache lines for each part, so that threads do not share them.
        let step = result.len().next_multiple_of(16);
        let mut partial = self.workspace.zeros(parts * step);
        let target = Shared::new(partial.slice());
        let done = fill(&|index| {
            assert!(index < parts);
            // SAFETY: that many parts exist.
            unsafe { target.at(index * step) }
        });
        result.fill(0.0);
        for sums in partial.slice().chunks_exact(step) {
            for (sum, more) in result.iter_mut().zip(sums) {
                *sum += more;
            }
        }
        done
    }
}
