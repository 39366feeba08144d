//! Products of matrices that fit into the cache together. Both are packed whole.

use super::source::Source;
use super::vector::{COLUMNS, ROWS, tile};
use crate::cpu::workspace::Workspace;

/// `product = left · right`, the rows of the product `step` apart.
///
/// # Safety
///
/// The CPU has AVX-512 BF16; the matrices are \[rows, depth\] and \[depth, columns\]; the
/// product has its rows, and no other thread touches them.
pub(crate) unsafe fn multiply(
    workspace: &Workspace,
    [rows, columns, depth]: [usize; 3],
    left: &Source,
    right: &Source,
    (product, step): (*mut f32, usize),
) {
    let pairs = depth.div_ceil(2);
    let (lefts, rights) = (rows.div_ceil(ROWS), columns.div_ceil(COLUMNS));
    let mut memory = workspace.take(pairs * (lefts * ROWS + rights * COLUMNS));
    let a: *mut u32 = memory.pointer().cast();
    // SAFETY: the memory has room for all panels of both; the caller guarantees the rest.
    unsafe {
        let b = a.add(pairs * lefts * ROWS);
        let (left, next) = left.pack_left(0..rows, 0..depth, a);
        right.pack(0..columns, COLUMNS, 0..depth, b, pairs * COLUMNS);
        for panel in 0..rights {
            let column = panel * COLUMNS;
            for index in 0..lefts {
                let row = index * ROWS;
                tile(
                    pairs,
                    left.later(index * next),
                    b.add(panel * pairs * COLUMNS),
                    (ROWS.min(rows - row), COLUMNS.min(columns - column)),
                    product.add(row * step + column),
                    step,
                    false,
                );
            }
        }
    }
}
