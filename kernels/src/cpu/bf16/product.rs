//! The blocked matrix product around the micro-kernel. It packs the right matrix once, and the left
//! one in blocks that stay in the L2 cache.

use std::ops::Range;

use super::micro::{COLUMNS, Left, Micro};
use super::source::Source;
use crate::cpu::elementwise::Rows;
use crate::cpu::epilogue::Beside;
use crate::cpu::kernels::Kernels;
use crate::cpu::matmul::Matmul;
use crate::cpu::parallel::{Shared, each, piece};
use crate::cpu::workspace::{Lease, Workspace};
use crate::error::KernelError;

/// Minimum number of blocks, if the product is large enough.
const BLOCKS: usize = 8;

/// Words of the right matrix that stay in the L2 cache, beside a block of the left one.
const NEAR: usize = 128 * 1024;

/// Steps of the depth that are packed at a time.
const CHUNK: usize = 64;

/// Packs a whole matrix as \[part of the depth\]\[panel\], with panels of `width` lanes. Calls
/// `pack` with the steps, the address and the words per panel of each chunk of the depth.
fn pack_all<'a, M: Micro>(
    workspace: &'a Workspace,
    [lanes, width, depth]: [usize; 3],
    pack: impl Fn(usize, Range<usize>, *mut u32, usize) + Sync + Send,
) -> Packed<'a> {
    let panels = lanes.div_ceil(width);
    let panel = M::pairs(M::DEPTH.min(depth)) * width;
    let mut memory = workspace.take(depth.div_ceil(M::DEPTH) * panels * panel);
    let words = Shared::new(memory.slice());
    each(depth.div_ceil(CHUNK), |index| {
        let steps = piece(index, CHUNK, depth);
        let part = steps.start / M::DEPTH * panels * panel;
        let start = part + steps.start % M::DEPTH / 2 * width;
        // SAFETY: the memory has all parts and panels.
        let to = unsafe { words.at(start).cast() };
        pack(index, steps, to, panel);
    });
    Packed {
        words,
        panel,
        panels,
        _memory: memory,
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
    /// Returns a panel of a part of the depth.
    fn panel(&self, part: usize, index: usize) -> *const u32 {
        // SAFETY: the matrix has that part and panel.
        unsafe {
            self.words
                .at((part * self.panels + index) * self.panel)
                .cast_const()
                .cast()
        }
    }
}

/// The function [`multiply`] of a micro-kernel.
pub(super) type Multiply =
    fn(&Kernels, &Matmul, &[f32], &[f32], &mut [f32], Beside<'_>) -> Result<(), KernelError>;

/// Multiplies matrices whose lengths have been checked, on a CPU with the instructions of `M`.
///
/// # Errors
///
/// Errors of the epilogue.
pub(super) fn multiply<M: Micro>(
    kernels: &Kernels,
    shape: &Matmul,
    left: &[f32],
    right: &[f32],
    product: &mut [f32],
    beside: Beside<'_>,
) -> Result<(), KernelError> {
    let (workspace, table) = (&kernels.workspace, kernels.table);
    let Beside {
        epilogue,
        map,
        sums,
    } = beside;
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
    let parts = depth.div_ceil(M::DEPTH);
    let panels = columns.div_ceil(COLUMNS);
    let size = [columns, COLUMNS, depth];
    let pack = |steps: Range<usize>, to: *mut u32, panel: usize| {
        // SAFETY: every chunk fills pairs of its own, in all panels.
        unsafe { right.pack_right::<M>(0..columns, steps, to, panel) };
    };
    let packed = match sums {
        None => pack_all::<M>(workspace, size, |_, steps, to, panel| {
            pack(steps, to, panel)
        }),
        Some(sums) => kernels.sum_of(depth.div_ceil(CHUNK), sums, |parts| {
            pack_all::<M>(workspace, size, |index, steps, to, panel| {
                pack(steps.clone(), to, panel);
                // SAFETY: the steps are rows of the matrix; every chunk has sums of its own.
                unsafe {
                    let from = right.start.at(steps.start * columns);
                    (table.column_sums)(steps.len(), columns, from, parts(index));
                }
            })
        }),
    };
    // Its rows are read from end to end only if the whole matrix is packed at once.
    let all_left = (left.lane == 1).then(|| {
        pack_all::<M>(workspace, [rows, M::ROWS, depth], |_, steps, to, panel| {
            // SAFETY: every chunk fills pairs of its own, in all micro-tiles.
            unsafe { left.pack_adjacent::<M>((map, workspace), rows, steps, to, panel) };
        })
    });

    // The same number for every thread, all of the same size.
    let all = rows.div_ceil(M::ROWS);
    let blocks = match all.div_ceil(M::BLOCK) {
        1..BLOCKS => all.div_ceil(M::LEAST).min(BLOCKS),
        many => many.next_multiple_of(BLOCKS),
    };
    let wide = panels.div_ceil(BLOCKS.div_ceil(blocks));
    let groups = panels.div_ceil(wide);
    // A group with all columns has complete rows.
    let fuse = groups == 1;
    let target = Shared::new(product);
    each(blocks * groups, |index| {
        let (block, group) = (index / groups, index % groups);
        let range =
            block * all / blocks * M::ROWS..((block + 1) * all / blocks * M::ROWS).min(rows);
        let columns_of = piece(group, wide, panels);
        let tiles = range.len().div_ceil(M::ROWS);
        let _session = M::session();
        let mut scratch = workspace.take(tiles * M::ROWS * M::pairs(M::DEPTH.min(depth)));
        let block: *mut u32 = scratch.pointer().cast();
        for part in 0..parts {
            let steps = piece(part, M::DEPTH, depth);
            let pairs = M::pairs(steps.len());
            // SAFETY: the scratch memory has room for all tiles of the block.
            let (lefts, step) = unsafe {
                match &all_left {
                    Some(all) => (
                        Left::panel(all.panel(part, range.start / M::ROWS)),
                        all.panel,
                    ),
                    None => left.pack_left::<M>((map, workspace), range.clone(), steps, block),
                }
            };
            // Panels that stay in the cache, and rows of the product from end to end.
            let near = (NEAR / (pairs * COLUMNS)).max(1);
            let cells = columns_of.clone().step_by(near).flat_map(|first| {
                let panels = first..(first + near).min(columns_of.end);
                (0..tiles).flat_map(move |index| panels.clone().map(move |panel| (index, panel)))
            });
            for (index, panel) in cells {
                let (row, column) = (range.start + index * M::ROWS, panel * COLUMNS);
                // SAFETY: both panels have been packed; this block of the product belongs to this
                // index alone.
                unsafe {
                    M::tile(
                        pairs,
                        lefts.later(index * step),
                        packed.panel(part, panel),
                        (M::ROWS.min(range.end - row), COLUMNS.min(columns - column)),
                        target.at(row * columns + column),
                        columns,
                        part > 0,
                    );
                }
            }
        }
        if fuse {
            let rows = (range.start * columns, range.len());
            // SAFETY: these rows belong to this index alone; the lengths have been checked.
            unsafe { epilogue.apply(table, columns, rows, target) };
        }
    });
    if fuse {
        return Ok(());
    }
    kernels.finish(Rows { rows, columns }, product, &epilogue)
}
