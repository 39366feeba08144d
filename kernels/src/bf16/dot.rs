//! The blocked product around the micro-kernel: the right matrix is packed once, the left one in
//! blocks that stay in the second-level cache.

use std::ops::Range;

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

/// Steps of the depth that are packed for all panels of a block before the next ones: their rows
/// stay in the first-level cache. Whole vectors of bf16.
const CHUNK: usize = 64;
/// Panels of the right matrix that are packed at a time.
const PANELS: usize = 4;

/// A matrix of which panels are packed.
struct Source {
    start: Shared,
    /// Distance of the lanes of a panel.
    lane: usize,
    /// Distance of steps of the depth.
    step: usize,
}

impl Source {
    /// Packs the lanes `lanes` into panels of `width`, `panel` words apart, over the steps `steps`.
    ///
    /// # Safety
    ///
    /// The processor has AVX-512 BF16; lanes and steps exist; `to` has room for the panels.
    unsafe fn pack(
        &self,
        lanes: Range<usize>,
        width: usize,
        steps: Range<usize>,
        to: *mut u32,
        panel: usize,
    ) {
        for start in (0..steps.len()).step_by(CHUNK) {
            let depth = CHUNK.min(steps.len() - start);
            for (index, first) in lanes.clone().step_by(width).enumerate() {
                let size = (width.min(lanes.end - first), width);
                // SAFETY: as the caller says; one of the two distances is 1.
                unsafe {
                    let step = steps.start + start;
                    let from = self
                        .start
                        .at(first * self.lane + step * self.step)
                        .cast_const();
                    let to = to.add(index * panel + start / 2 * width);
                    if self.lane == 1 {
                        pack_adjacent(size, depth, from, self.step, to);
                    } else {
                        pack_apart(size, depth, from, self.lane, to);
                    }
                }
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
    let batches = panels.div_ceil(PANELS);
    each(parts * batches, |index| {
        let some = piece(index % batches, PANELS, panels);
        let steps = piece(index / batches, DEPTH, depth);
        let lanes = some.start * COLUMNS..columns.min(some.end * COLUMNS);
        // SAFETY: every index has panels of its own.
        unsafe {
            let to = words
                .at((index / batches * panels + some.start) * part)
                .cast();
            right.pack(lanes, COLUMNS, steps, to, part);
        }
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
            // SAFETY: the scratch memory has room for all tiles of the block.
            unsafe { left.pack(range.clone(), ROWS, steps, lefts, ROWS * pairs) };
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
