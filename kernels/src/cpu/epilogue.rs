//! Operations before and after a matrix product, while its data is in the cache.

use crate::cpu::elementwise::Rows;
use crate::cpu::kernels::Kernels;
use crate::cpu::parallel::Shared;
use crate::cpu::table::Table;
use crate::error::{KernelError, length};

/// Adds a bias and a residual, applies ReLU, and multiplies by GELU's slope; each is optional.
#[derive(Clone, Copy, Debug, Default)]
pub struct Epilogue<'a> {
    /// Added to every row.
    pub bias: Option<&'a [f32]>,
    /// Added element by element.
    pub residual: Option<&'a [f32]>,
    /// Applies ReLU afterwards.
    pub relu: bool,
    /// The input of GELU, if the values are the gradient of its output. They are multiplied element
    /// by element by the slope there, and so become the gradient of the input.
    pub gelu_input: Option<&'a [f32]>,
}

/// Maps numbers one by one: their count, input and output.
pub(crate) type Map = unsafe fn(usize, *const f32, *mut f32);

/// Work of a matrix product beside the multiplication.
#[derive(Default)]
pub(crate) struct Beside<'a> {
    /// Applied to the product; its lengths have been checked.
    pub epilogue: Epilogue<'a>,
    /// Applied to the left matrix first.
    pub map: Option<Map>,
    /// Receives the sums of the columns of the right matrix, which is not transposed.
    pub sums: Option<&'a mut [f32]>,
}

impl Epilogue<'_> {
    pub(crate) fn check(&self, shape: Rows) -> Result<(), KernelError> {
        const OP: &str = "bias";
        let elements = shape.elements(OP)?;
        if let Some(bias) = self.bias {
            length(OP, "bias", bias.len(), shape.columns)?;
        }
        for (name, values) in [("residual", self.residual), ("gelu_input", self.gelu_input)] {
            values.map_or(Ok(()), |values| length(OP, name, values.len(), elements))?;
        }
        Ok(())
    }

    fn is_nothing(&self) -> bool {
        self.adds_nothing() && self.gelu_input.is_none()
    }

    fn adds_nothing(&self) -> bool {
        self.bias.is_none() && self.residual.is_none() && !self.relu
    }

    /// Applies the operations to `rows` rows of `values`, from the element `start` on.
    ///
    /// # Safety
    ///
    /// The lengths have been checked for these values, and no other thread touches the rows.
    pub(crate) unsafe fn apply(
        &self,
        table: &Table,
        columns: usize,
        (start, rows): (usize, usize),
        values: Shared,
    ) {
        // SAFETY: guaranteed by the caller; of gradients read and written at the same place.
        unsafe {
            if !self.adds_nothing() {
                self.add(table, columns, (start, rows), values);
            }
            if let Some(input) = self.gelu_input {
                let (input, values) = (input[start..].as_ptr(), values.at(start));
                (table.gelu_gradient)(rows * columns, input, values, values);
            }
        }
    }

    /// Applies bias, residual and ReLU.
    ///
    /// # Safety
    ///
    /// As for [`Epilogue::apply`].
    unsafe fn add(
        &self,
        table: &Table,
        columns: usize,
        (start, rows): (usize, usize),
        values: Shared,
    ) {
        let null = std::ptr::null();
        let bias = self.bias.map_or(null, <[f32]>::as_ptr);
        let residual = self.residual.map_or(null, |all| all[start..].as_ptr());
        // SAFETY: guaranteed by the caller.
        unsafe {
            let values = values.at(start);
            (table.add_bias)(rows, columns, values, bias, residual, self.relu);
        }
    }
}

impl Kernels {
    /// Applies `epilogue` to `values`.
    ///
    /// # Errors
    ///
    /// A size of zero, slices whose lengths do not match the shape.
    pub fn finish(
        &self,
        shape: Rows,
        values: &mut [f32],
        epilogue: &Epilogue<'_>,
    ) -> Result<(), KernelError> {
        length("bias", "values", values.len(), shape.elements("bias")?)?;
        epilogue.check(shape)?;
        if epilogue.is_nothing() {
            return Ok(());
        }
        let values = Shared::new(values);
        self.row_pieces(shape, |start, rows| {
            // SAFETY: pieces are whole rows that do not overlap.
            unsafe { epilogue.apply(self.table, shape.columns, (start, rows), values) };
        });
        Ok(())
    }

    /// Copies `values` to `output` and applies `epilogue` to the copy.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`finish`](Self::finish), and fails if the slices have different
    /// lengths.
    pub fn finish_copy(
        &self,
        shape: Rows,
        values: &[f32],
        output: &mut [f32],
        epilogue: &Epilogue<'_>,
    ) -> Result<(), KernelError> {
        length("bias", "values", values.len(), shape.elements("bias")?)?;
        length("bias", "output", output.len(), values.len())?;
        epilogue.check(shape)?;
        let output = Shared::new(output);
        self.row_pieces(shape, |start, rows| {
            let count = rows * shape.columns;
            let piece = &values[start..start + count];
            // SAFETY: pieces are whole rows that do not overlap, and are in the cache when the
            // epilogue reads them.
            unsafe {
                std::ptr::copy_nonoverlapping(piece.as_ptr(), output.at(start), count);
                epilogue.apply(self.table, shape.columns, (start, rows), output);
            }
        });
        Ok(())
    }
}
