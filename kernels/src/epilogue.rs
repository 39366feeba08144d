//! What follows a product of matrices, in one pass over its result.

use crate::elementwise::Rows;
use crate::error::{KernelError, length};
use crate::kernels::Kernels;
use crate::parallel::Shared;
use crate::table::Table;

/// A bias, then a residual, then ReLU, as far as they are wanted.
#[derive(Clone, Copy, Debug, Default)]
pub struct Epilogue<'a> {
    /// Added to every row.
    pub bias: Option<&'a [f32]>,
    /// Added element by element.
    pub residual: Option<&'a [f32]>,
    /// Whether ReLU comes last.
    pub relu: bool,
}

impl Epilogue<'_> {
    pub(crate) fn check(&self, shape: Rows) -> Result<(), KernelError> {
        const OP: &str = "bias";
        let elements = shape.elements(OP)?;
        if let Some(bias) = self.bias {
            length(OP, "bias", bias.len(), shape.columns)?;
        }
        match self.residual {
            Some(residual) => length(OP, "residual", residual.len(), elements),
            None => Ok(()),
        }
    }

    fn is_nothing(&self) -> bool {
        self.bias.is_none() && self.residual.is_none() && !self.relu
    }

    /// Applies it to `rows` rows of `values`, from the element `start` on.
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
        if self.is_nothing() {
            return;
        }
        let null = std::ptr::null();
        let bias = self.bias.map_or(null, <[f32]>::as_ptr);
        let residual = self.residual.map_or(null, |all| all[start..].as_ptr());
        // SAFETY: as the caller says.
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
    /// A size of zero, slices of other lengths than the shape says.
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
}
