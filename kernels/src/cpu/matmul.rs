//! Matrix products in f32, through the crate `gemm`, which reaches the peak of the CPU.

use crate::cpu::kernels::Kernels;
use crate::error::{KernelError, length, volume};

/// Shape of a product `[rows, depth] · [depth, columns]` of row-major matrices.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Matmul {
    /// Rows of the left matrix and of the product.
    pub rows: usize,
    /// Columns of the right matrix and of the product.
    pub columns: usize,
    /// Columns of the left matrix, rows of the right one.
    pub depth: usize,
    /// The left matrix is stored transposed, \[depth, rows\].
    pub left_transposed: bool,
    /// The right matrix is stored transposed, \[columns, depth\].
    pub right_transposed: bool,
}

impl Matmul {
    /// Checks the lengths of the three matrices.
    pub(crate) fn check(
        &self,
        left: &[f32],
        right: &[f32],
        product: &[f32],
    ) -> Result<(), KernelError> {
        const OP: &str = "matmul";
        let (rows, columns) = (("rows", self.rows), ("columns", self.columns));
        let depth = ("depth", self.depth);
        length(OP, "left", left.len(), volume(OP, &[rows, depth])?)?;
        length(OP, "right", right.len(), volume(OP, &[depth, columns])?)?;
        length(OP, "product", product.len(), volume(OP, &[rows, columns])?)
    }
}

impl Kernels {
    /// `product = left · right` in f32. Always on the best instruction set of the CPU, as the
    /// crate `gemm` chooses it itself.
    ///
    /// # Errors
    ///
    /// A size of zero, slices whose lengths do not match the shape.
    pub fn matmul(
        &self,
        shape: &Matmul,
        left: &[f32],
        right: &[f32],
        product: &mut [f32],
    ) -> Result<(), KernelError> {
        shape.check(left, right, product)?;
        self::product(
            [shape.rows, shape.columns, shape.depth],
            (left, shape.left_transposed),
            (right, shape.right_transposed),
            product,
        );
        Ok(())
    }
}

/// Computes the product of matrices whose lengths have been checked: rows, columns and depth; each
/// matrix comes with a flag for transposed storage.
pub(crate) fn product(
    size: [usize; 3],
    left: (&[f32], bool),
    right: (&[f32], bool),
    product: &mut [f32],
) {
    product_on(rayon::current_num_threads(), size, left, right, product);
}

/// [`product`] on a number of threads.
pub(crate) fn product_on(
    threads: usize,
    [rows, columns, depth]: [usize; 3],
    (left, left_transposed): (&[f32], bool),
    (right, right_transposed): (&[f32], bool),
    product: &mut [f32],
) {
    let steps = |transposed: bool, rows: usize, columns: usize| {
        if transposed {
            (rows as isize, 1)
        } else {
            (1, columns as isize)
        }
    };
    let (left_column, left_row) = steps(left_transposed, rows, depth);
    let (right_column, right_row) = steps(right_transposed, depth, columns);
    let parallelism = if threads > 1 {
        gemm::Parallelism::Rayon(threads)
    } else {
        gemm::Parallelism::None
    };
    // SAFETY: all three matrices have the elements that their sizes and strides reach, and the
    // product is borrowed exclusively.
    unsafe {
        gemm::gemm(
            rows,
            columns,
            depth,
            product.as_mut_ptr(),
            1,
            columns as isize,
            false,
            left.as_ptr(),
            left_column,
            left_row,
            right.as_ptr(),
            right_column,
            right_row,
            0.0f32,
            1.0f32,
            false,
            false,
            false,
            parallelism,
        );
    }
}
