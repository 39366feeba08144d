//! The blocked product around the micro-kernel: the right matrix is packed once, the left one in
//! blocks that stay in the second-level cache.

use std::ops::Range;

use super::vector::{COLUMNS, ROWS, pack_adjacent, pack_apart, tile};
use crate::matmul::Matmul;
use crate::parallel::{Shared, each, piece};
use crate::workspace::{Lease, Workspace};

/// Depth of a block; even.
const DEPTH: usize = 768;
/// Rows of a block at most, whole micro-tiles.
const BLOCK: usize = 240;
/// Blocks at least, where the product is large enough.
const BLOCKS: usize = 8;

/// Steps of the depth that are packed at a time.
const CHUNK: usize = 64;

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
        // SAFETY: as the caller says; one of the two distances is 1.
        unsafe {
            let from = |lane: usize| self.start.at(lane * self.lane + steps.start * self.step);
            if self.lane == 1 {
                let size = (lanes.len(), width);
                let from = from(lanes.start).cast_const();
                return pack_adjacent(size, steps.len(), from, self.step, to, panel);
            }
            for (index, first) in lanes.clone().step_by(width).enumerate() {
                let size = (width.min(lanes.end - first), width);
                let (from, to) = (from(first).cast_const(), to.add(index * panel));
                pack_apart(size, steps.len(), from, self.lane, to);
            }
        }
    }

    /// Packs the whole matrix: \[part of the depth\]\[panel\]\[pair\]\[lane\].
    fn pack_all<'a>(
        &self,
        workspace: &'a Workspace,
        lanes: usize,
        width: usize,
        depth: usize,
    ) -> Packed<'a> {
        let panels = lanes.div_ceil(width);
        let panel = DEPTH.min(depth.next_multiple_of(2)) / 2 * width;
        let mut memory = workspace.take(depth.div_ceil(DEPTH) * panels * panel);
        let words = Shared::new(memory.slice());
        each(depth.div_ceil(CHUNK), |index| {
            let steps = piece(index, CHUNK, depth);
            let part = steps.start / DEPTH * panels * panel;
            let start = part + steps.start % DEPTH / 2 * width;
            // SAFETY: every index fills pairs of its own, in all panels.
            unsafe { self.pack(0..lanes, width, steps, words.at(start).cast(), panel) };
        });
        Packed {
            words,
            panel,
            panels,
            _memory: memory,
        }
    }
}

/// A packed matrix.
struct Packed<'a> {
    words: Shared,
    /// Words per panel of a part of the depth.
    panel: usize,
    panels: usize,
    _memory: Lease<'a>,
}

impl Packed<'_> {
    /// A panel of a part of the depth.
    fn panel(&self, part: usize, index: usize) -> *const u32 {
        // SAFETY: there are so many parts and panels.
        unsafe {
            self.words
                .at((part * self.panels + index) * self.panel)
                .cast_const()
                .cast()
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
    let panels = columns.div_ceil(COLUMNS);
    let packed = right.pack_all(workspace, columns, COLUMNS, depth);
    // Its rows are read from end to end only if all of it is packed at once.
    let all_left = (left.lane == 1).then(|| left.pack_all(workspace, rows, ROWS, depth));

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
        let block: *mut u32 = scratch.pointer().cast();
        for part in 0..parts {
            let steps = piece(part, DEPTH, depth);
            let pairs = steps.len().div_ceil(2);
            let (lefts, step) = match &all_left {
                Some(all) => (all.panel(part, range.start / ROWS), all.panel),
                None => {
                    // SAFETY: the scratch memory has room for all tiles of the block.
                    unsafe { left.pack(range.clone(), ROWS, steps, block, ROWS * pairs) };
                    (block.cast_const(), ROWS * pairs)
                }
            };
            for panel in columns_of.clone() {
                let column = panel * COLUMNS;
                for index in 0..tiles {
                    let row = range.start + index * ROWS;
                    // SAFETY: both panels have been packed; this block of the product belongs to
                    // this index alone.
                    unsafe {
                        tile(
                            pairs,
                            lefts.add(index * step),
                            packed.panel(part, panel),
                            (ROWS.min(range.end - row), COLUMNS.min(columns - column)),
                            target.at(row * columns + column),
                            columns,
                            part > 0,
                        );
                    }
                }
            }
        }
    });
}
