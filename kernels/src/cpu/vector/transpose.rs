//! Transposition of matrices, one square of registers at a time.

use crate::cpu::simd::Simd;

/// Writes the transpose of `from` (`rows` × `columns`, rows `from_step` apart) to `to`, whose rows
/// are `to_step` apart.
///
/// # Safety
///
/// The CPU has `V`'s instruction set; both matrices lie where the arguments say.
#[inline(always)]
pub(crate) unsafe fn transpose<V: Simd>(
    rows: usize,
    columns: usize,
    from: *const f32,
    from_step: usize,
    to: *mut f32,
    to_step: usize,
) {
    let (whole_rows, whole_columns) = (rows - rows % V::LANES, columns - columns % V::LANES);
    // SAFETY: all indices stay below `rows` and `columns`.
    unsafe {
        for row in (0..whole_rows).step_by(V::LANES) {
            for column in (0..whole_columns).step_by(V::LANES) {
                V::transpose(
                    from.add(row * from_step + column),
                    from_step,
                    to.add(column * to_step + row),
                    to_step,
                );
            }
        }
        for row in 0..rows {
            let start = if row < whole_rows { whole_columns } else { 0 };
            for column in start..columns {
                *to.add(column * to_step + row) = *from.add(row * from_step + column);
            }
        }
    }
}
