//! The blocked product around the micro-kernel: the right matrix is packed once, the left one in
//! blocks that stay in the second-level cache.

use super::vector::{COLUMNS, ROWS, pack_adjacent, pack_apart, tile};
use crate::matmul::Matmul;
use crate::parallel::{Shared, each, piece};
use crate::workspace::Workspace;

/// Depth of a block; even.
const DEPTH: usize = 768;
/// Rows of a block at most, whole micro-tiles.
const BLOCK: usize = 240;
/// Blocks at least, where the product is large enough.
const BLOCKS: usize = 8;

/// A matrix of which panels are packed.
struct Source {
    start: Shared,
    /// Distance of the lanes of a panel.
    lane: usize,
    /// Distance of steps of the depth.
    step: usize,
}

impl Source {
    /// Packs lanes from `first` on, the steps `from` to `from + depth`.
    ///
    /// # Safety
    ///
    /// The processor has AVX-512 BF16; lanes and steps exist; `to` has room for the panel.
    unsafe fn pack(
        &self,
        first: usize,
        size: (usize, usize),
        from: usize,
        depth: usize,
        to: *mut u32,
    ) {
        // SAFETY: as the caller says; one of the two distances is 1.
        unsafe {
            let start = self
                .start
                .at(first * self.lane + from * self.step)
                .cast_const();
            if self.lane == 1 {
                pack_adjacent(size, depth, start, self.step, to);
            } else {
                pack_apart(size, depth, start, self.lane, to);
            }
        }
    }
}

/// Multiplies matrices whose lengths have been checked, on a processor with AVX-512 BF16.
pub(super) fn multiply(
    workspace: &Workspace,
    shape: &Matmul,
    left: &[f32],
    right: &[f32],
    product: &mut [f32],
) {
    let Matmul {
        rows,
        columns,
        depth,
        ..
    } = *shape;
    let source = |matrix: &[f32], adjacent: bool, lanes: usize| Source {
        start: Shared::read_only(matrix),
        lane: if adjacent { 1 } else { depth },
        step: if adjacent { lanes } else { 1 },
    };
    let left = source(left, shape.left_transposed, rows);
    let right = source(right, !shape.right_transposed, columns);
    let parts = depth.div_ceil(DEPTH);
    // Words of all panels of one part of the depth.
    let panels = columns.div_ceil(COLUMNS);
    let part = DEPTH.min(depth.next_multiple_of(2)) / 2 * COLUMNS;
    let mut packed = workspace.take(parts * panels * part);
    let words = Shared::new(packed.slice());
    each(parts * panels, |index| {
        let first = index % panels * COLUMNS;
        let range = piece(index / panels, DEPTH, depth);
        let size = (COLUMNS.min(columns - first), COLUMNS);
        // SAFETY: every index has a panel of its own.
        unsafe {
            right.pack(
                first,
                size,
                range.start,
                range.len(),
                words.at(index * part).cast(),
            )
        };
    });

    let block = rows
        .div_ceil(BLOCKS)
        .next_multiple_of(ROWS)
        .clamp(4 * ROWS, BLOCK);
    let blocks = rows.div_ceil(block);
    let wide = panels.div_ceil(BLOCKS.div_ceil(blocks));
    let groups = panels.div_ceil(wide);
    let target = Shared::new(product);
    each(blocks * groups, |index| {
        let range = piece(index / groups, block, rows);
        let columns_of = piece(index % groups, wide, panels);
        let tiles = range.len().div_ceil(ROWS);
        let mut scratch = workspace.take(tiles * ROWS * DEPTH.min(depth.next_multiple_of(2)) / 2);
        let lefts: *mut u32 = scratch.pointer().cast();
        for part_index in 0..parts {
            let steps = piece(part_index, DEPTH, depth);
            let pairs = steps.len().div_ceil(2);
            for index in 0..tiles {
                let first = range.start + index * ROWS;
                let size = (ROWS.min(range.end - first), ROWS);
                // SAFETY: the scratch memory has room for all tiles of the block.
                unsafe {
                    let to = lefts.add(index * ROWS * pairs);
                    left.pack(first, size, steps.start, steps.len(), to);
                }
            }
            for panel in columns_of.clone() {
                let column = panel * COLUMNS;
                for index in 0..tiles {
                    let row = range.start + index * ROWS;
                    // SAFETY: both panels have been packed; this block of the product belongs to
                    // this index alone.
                    unsafe {
                        let b = words.at((part_index * panels + panel) * part).cast_const();
                        tile(
                            pairs,
                            lefts.add(index * ROWS * pairs),
                            b.cast(),
                            (ROWS.min(range.end - row), COLUMNS.min(columns - column)),
                            target.at(row * columns + column),
                            columns,
                            part_index > 0,
                        );
                    }
                }
            }
        }
    });
}
