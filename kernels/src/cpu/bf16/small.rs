//! Products of matrices that fit into the cache together. Both are packed whole.

use super::micro::{COLUMNS, Micro};
use super::source::Source;
use crate::cpu::workspace::Workspace;

/// The function [`multiply`] of a micro-kernel.
pub(crate) type Multiply = unsafe fn(&Workspace, [usize; 3], &Source, &Source, (*mut f32, usize));

/// `product = left · right`, the rows of the product `step` apart.
///
/// # Safety
///
/// The CPU has the instructions of `M`; the matrices are \[rows, depth\] and
/// \[depth, columns\]; the product has its rows, and no other thread touches them.
pub(crate) unsafe fn multiply<M: Micro>(
    workspace: &Workspace,
    [rows, columns, depth]: [usize; 3],
    left: &Source,
    right: &Source,
    (product, step): (*mut f32, usize),
) {
    let pairs = M::pairs(depth);
    let (lefts, rights) = (rows.div_ceil(M::ROWS), columns.div_ceil(COLUMNS));
    let mut memory = workspace.take(pairs * (lefts * M::ROWS + rights * COLUMNS));
    let a: *mut u32 = memory.pointer().cast();
    // SAFETY: the memory has room for all panels of both; the caller guarantees the rest.
    unsafe {
        let b = a.add(pairs * lefts * M::ROWS);
        let (left, next) = left.pack_left::<M>((None, workspace), 0..rows, 0..depth, a);
        right.pack_right::<M>(0..columns, 0..depth, b, pairs * COLUMNS);
        let _session = M::session();
        for panel in 0..rights {
            let column = panel * COLUMNS;
            for index in 0..lefts {
                let row = index * M::ROWS;
                M::tile(
                    pairs,
                    left.later(index * next),
                    b.add(panel * pairs * COLUMNS),
                    (M::ROWS.min(rows - row), COLUMNS.min(columns - column)),
                    product.add(row * step + column),
                    step,
                    false,
                );
            }
        }
    }
}
