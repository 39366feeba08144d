//! The micro-kernel of all matrix products: a few rows times two vectors of columns, which stay in
//! registers during the loop over the depth.

use crate::cpu::simd::{Simd, store_up_to};

/// Computes `c (+)= a · b` for one panel of columns.
///
/// The depth consists of `runs` runs of `depth` steps, like the rows of a window in an image.
pub(crate) struct Block {
    /// Rows of `a` and `c`.
    pub rows: usize,
    /// Columns of `c`, at most two vectors.
    pub columns: usize,
    /// Steps per run.
    pub depth: usize,
    /// Number of runs.
    pub runs: usize,
    /// Readable at `row · a_row + step · a_step + run · a_run`.
    pub a: *const f32,
    /// Distance between rows. Either this or `a_step` is 1.
    pub a_row: usize,
    /// Distance between steps.
    pub a_step: usize,
    /// Distance between runs.
    pub a_run: usize,
    /// Readable at `step · b_step + run · b_run + column`, for whole vectors: one if `columns` fit
    /// into one, else two.
    pub b: *const f32,
    /// Distance between steps.
    pub b_step: usize,
    /// Distance between runs.
    pub b_run: usize,
    /// Writable at `row · c_row + column`.
    pub c: *mut f32,
    /// Distance between rows.
    pub c_row: usize,
    /// Adds to `c` instead of overwriting it.
    pub add: bool,
}

/// Computes the whole block.
///
/// # Safety
///
/// The CPU has `V`'s instruction set; the addresses are good for what [`Block`] says.
#[inline(always)]
pub(crate) unsafe fn block<V: Simd>(block: &Block) {
    let mut row = 0;
    while row < block.rows {
        let left = block.rows - row;
        // Two tiles of half the size instead of a full one and a small one that stalls the
        // pipeline.
        let take = if left >= 2 * V::ROWS || left == V::ROWS {
            V::ROWS
        } else if left > V::ROWS {
            left.div_ceil(2)
        } else {
            left
        };
        // SAFETY: guaranteed by the caller; `row + take` ≤ `rows`.
        unsafe {
            if block.columns <= V::LANES {
                rows::<V, 1>(block, row, take);
            } else {
                rows::<V, 2>(block, row, take);
            }
        }
        row += take;
    }
}

#[inline(always)]
unsafe fn rows<V: Simd, const VECTORS: usize>(block: &Block, row: usize, count: usize) {
    macro_rules! dispatch {
        ($($rows:literal)*) => {
            match count {
                $($rows if $rows <= V::ROWS => {
                    // SAFETY: guaranteed by the caller.
                    unsafe {
                        if block.a_row == 1 {
                            tile::<V, $rows, VECTORS, true>(block, row);
                        } else {
                            tile::<V, $rows, VECTORS, false>(block, row);
                        }
                    }
                })*
                _ => {}
            }
        };
    }
    dispatch!(12 6 8 1 2 3 4 5 7 9 10 11);
}

/// Computes one tile. `BY_STEP` means that the rows of `a` are adjacent, otherwise its steps are.
/// Both are compile-time constants, so that the compiler addresses `a` without a multiplication per
/// row.
#[inline(always)]
unsafe fn tile<V: Simd, const ROWS: usize, const VECTORS: usize, const BY_STEP: bool>(
    block: &Block,
    row: usize,
) {
    // SAFETY: guaranteed by the caller of `block`.
    unsafe {
        let a_row = if BY_STEP { 1 } else { block.a_row };
        let a_step = if BY_STEP { block.a_step } else { 1 };
        let mut sums = [[V::zero(); VECTORS]; ROWS];
        for run in 0..block.runs {
            let mut a = block.a.add(run * block.a_run + row * a_row);
            let mut b = block.b.add(run * block.b_run);
            for _ in 0..block.depth {
                let mut columns = [V::zero(); VECTORS];
                for (vector, column) in columns.iter_mut().enumerate() {
                    *column = V::load(b.add(vector * V::LANES));
                }
                for (index, sum) in sums.iter_mut().enumerate() {
                    let value = V::splat(*a.add(index * a_row));
                    for (sum, column) in sum.iter_mut().zip(columns) {
                        *sum = value.fma(column, *sum);
                    }
                }
                a = a.wrapping_add(a_step);
                b = b.wrapping_add(block.b_step);
            }
        }
        for (index, sum) in sums.iter().enumerate() {
            let c = block.c.add((row + index) * block.c_row);
            for (vector, &sum) in sum.iter().enumerate() {
                let c = c.add(vector * V::LANES);
                let count = block.columns - vector * V::LANES;
                let sum = if block.add {
                    sum.add(crate::cpu::simd::load_up_to::<V>(c, count))
                } else {
                    sum
                };
                store_up_to(sum, c, count);
            }
        }
    }
}
