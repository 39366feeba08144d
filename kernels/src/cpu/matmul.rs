//! Matrix products in f32, divided among the threads. The crate `gemm` computes each piece on one
//! thread.

use crate::cpu::elementwise::Rows;
use crate::cpu::epilogue::{Beside, Map};
use crate::cpu::grid::{Grid, Piece};
use crate::cpu::kernels::Kernels;
use crate::cpu::parallel::{Shared, each, piece};
use crate::error::{KernelError, length, volume};

/// Elements, 4 KiB: places that far apart share a set of the L1 cache.
const SET: usize = 1024;

/// Minimum number of rows and columns of a product that is worth a transposed copy.
const LARGE: usize = 64;

/// Rows that are transposed at a time.
const TURNED: usize = 64;

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

    /// Whether a column of the right matrix lies in one set of the L1 cache. Every piece would pack
    /// it slowly, and one transposed copy serves all.
    fn right_conflicts(&self) -> bool {
        self.right_transposed
            && self.depth.is_multiple_of(SET)
            && self.rows.min(self.columns) >= LARGE
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
        self::product(self, shape, left, right, product, Beside::default())
    }
}

/// A factor of a product.
#[derive(Clone, Copy)]
struct Factor<'a> {
    values: &'a [f32],
    /// Elements from a row to the next.
    row: usize,
    /// Elements from a column to the next.
    column: usize,
}

impl<'a> Factor<'a> {
    /// A matrix of this size, stored transposed or not.
    fn new(values: &'a [f32], transposed: bool, [rows, columns]: [usize; 2]) -> Self {
        let (row, column) = if transposed { (1, rows) } else { (columns, 1) };
        Self {
            values,
            row,
            column,
        }
    }

    /// The address of an element.
    fn at(&self, row: usize, column: usize) -> *const f32 {
        self.values[row * self.row + column * self.column..].as_ptr()
    }
}

/// Distance between rows of a copy with `columns` columns: an odd number of cache lines, so that
/// its columns do not share sets of the cache.
fn apart(columns: usize) -> usize {
    columns.next_multiple_of(16) | 16
}

/// Copies a matrix of `lines` of `length` elements transposed.
fn turn<'a>(
    kernels: &Kernels,
    [lines, length]: [usize; 2],
    from: &[f32],
    to: &'a mut [f32],
) -> Factor<'a> {
    let step = apart(lines);
    let target = Shared::new(to);
    each(lines.div_ceil(TURNED), |index| {
        let lines = piece(index, TURNED, lines);
        let from = from[lines.start * length..].as_ptr();
        // SAFETY: the lines lie within the matrix; no other piece has these columns of the copy.
        unsafe {
            let to = target.at(lines.start);
            (kernels.table.transpose)(lines.len(), length, from, length, to, step);
        }
    });
    Factor {
        values: to,
        row: step,
        column: 1,
    }
}

/// Computes the product of matrices whose lengths have been checked.
///
/// # Errors
///
/// Errors of the epilogue.
pub(crate) fn product(
    kernels: &Kernels,
    shape: &Matmul,
    left: &[f32],
    right: &[f32],
    out: &mut [f32],
    beside: Beside<'_>,
) -> Result<(), KernelError> {
    let (rows, columns, depth) = (shape.rows, shape.columns, shape.depth);
    let grid = Grid::new([rows, columns, depth], rayon::current_num_threads());
    let mut turned;
    let turned = match shape.right_conflicts() {
        true => {
            turned = kernels.workspace.take(depth * apart(columns));
            Some(turn(kernels, [columns, depth], right, turned.slice()))
        }
        false => None,
    };
    let factors = (
        Factor::new(left, shape.left_transposed, [rows, depth]),
        turned.unwrap_or(Factor::new(right, shape.right_transposed, [depth, columns])),
    );
    let Beside {
        epilogue,
        map,
        sums,
    } = beside;
    if let Some(sums) = sums {
        let (rows, columns) = (depth, columns);
        kernels.bias_gradient(Rows { rows, columns }, right, sums)?;
    }
    let [_, over_columns, parts] = grid.pieces;
    let target = Shared::new(out);
    if parts > 1 {
        let elements = rows * columns;
        let mut partial = kernels.workspace.take(parts * elements);
        let partial = Shared::new(partial.slice());
        each(grid.count(), |index| {
            let piece = grid.piece(index);
            // SAFETY: pieces lie within their partial sum and do not overlap.
            unsafe {
                let all = partial.at(piece.part * elements);
                multiply(kernels, &piece, factors, map, all, columns);
            }
        });
        add(kernels, partial, parts, out);
        return kernels.finish(Rows { rows, columns }, out, &epilogue);
    }
    let whole_rows = over_columns == 1;
    each(grid.count(), |index| {
        let piece = grid.piece(index);
        // SAFETY: pieces lie within the product and do not overlap.
        unsafe { multiply(kernels, &piece, factors, map, target.at(0), columns) };
        if whole_rows {
            let lines = (piece.rows.start * columns, piece.rows.len());
            // SAFETY: as above; the piece has whole rows, and the lengths have been checked.
            unsafe { epilogue.apply(kernels.table, columns, lines, target) };
        }
    });
    match whole_rows {
        true => Ok(()),
        false => kernels.finish(Rows { rows, columns }, out, &epilogue),
    }
}

/// Computes a piece of the product whose rows of `columns` elements begin at `product`.
///
/// # Safety
///
/// The piece lies within both factors and the product, and no other thread touches it.
unsafe fn multiply(
    kernels: &Kernels,
    piece: &Piece,
    (left, right): (Factor<'_>, Factor<'_>),
    map: Option<Map>,
    product: *mut f32,
    columns: usize,
) {
    let mut mapped;
    let start = left.at(piece.rows.start, piece.depth.start);
    let left = match map {
        None => (start, left.row, left.column),
        Some(map) => {
            // The piece in lines of adjacent elements.
            let (lines, line, step) = match left.column {
                1 => (piece.rows.len(), piece.depth.len(), left.row),
                _ => (piece.depth.len(), piece.rows.len(), left.column),
            };
            mapped = kernels.workspace.take(lines * line);
            let to = mapped.slice().as_mut_ptr();
            let (lines, length) = match line == step {
                true => (1, lines * line),
                false => (lines, line),
            };
            for index in 0..lines {
                // SAFETY: the line lies within the factor and the memory.
                unsafe { map(length, start.add(index * step), to.add(index * line)) };
            }
            match left.column {
                1 => (to.cast_const(), line, 1),
                _ => (to.cast_const(), 1, line),
            }
        }
    };
    let size = [piece.rows.len(), piece.columns.len(), piece.depth.len()];
    let start = right.at(piece.depth.start, piece.columns.start);
    let right = (start, right.row, right.column);
    let place = piece.rows.start * columns + piece.columns.start;
    // SAFETY: guaranteed by the caller.
    unsafe { serial(size, left, right, (product.add(place), columns)) };
}

/// Adds partial sums in their order.
fn add(kernels: &Kernels, partial: Shared, parts: usize, out: &mut [f32]) {
    let elements = out.len();
    let out = Shared::new(out);
    kernels.pieces(elements, |start, count| {
        // SAFETY: pieces do not overlap and lie within all sums.
        unsafe {
            let to = out.at(start);
            std::ptr::copy_nonoverlapping(partial.at(start), to, count);
            for part in 1..parts {
                (kernels.table.accumulate)(count, partial.at(part * elements + start), to);
            }
        }
    });
}

/// Multiplies on this thread. Factors come with their elements from a row and from a column to the
/// next, the product with those from a row to the next.
///
/// # Safety
///
/// All elements that sizes and steps reach exist, and no other thread touches the product.
pub(crate) unsafe fn serial(
    [rows, columns, depth]: [usize; 3],
    (left, left_row, left_column): (*const f32, usize, usize),
    (right, right_row, right_column): (*const f32, usize, usize),
    (product, step): (*mut f32, usize),
) {
    // SAFETY: guaranteed by the caller.
    unsafe {
        gemm::gemm(
            rows,
            columns,
            depth,
            product,
            1,
            step as isize,
            false,
            left,
            left_column as isize,
            left_row as isize,
            right,
            right_column as isize,
            right_row as isize,
            0.0f32,
            1.0f32,
            false,
            false,
            false,
            gemm::Parallelism::None,
        );
    }
}
