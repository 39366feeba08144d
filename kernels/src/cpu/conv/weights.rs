//! Layouts of the weights inside of the kernels.
//!
//! "Spread" weights are \[depth\]\[tap\]\[lane\]. `depth` runs over the channels of the sum, `lane`
//! over the channels of the result, padded with zeros to whole vectors. Gradients have the same
//! form.

use super::shape::Conv2d;
use crate::cpu::kernels::Kernels;
use crate::cpu::parallel::{Shared, each, piece};
use crate::cpu::workspace::Lease;

/// Channels whose weights are converted at a time.
const CHANNELS: usize = 16;

/// Weights as \[depth\]\[tap\]\[lane\] with `lanes` per row.
pub(super) struct Spread<'a> {
    pub weights: Lease<'a>,
    pub depth: usize,
    pub lanes: usize,
}

/// Spreads weights for a sum over the input's channels.
pub(super) fn by_output<'a>(kernels: &'a Kernels, shape: &Conv2d, weight: &[f32]) -> Spread<'a> {
    let (depth, lanes) = (shape.in_channels, shape.out_channels);
    let per_output = depth * shape.taps();
    let padded = lanes.next_multiple_of(kernels.table.lanes);
    let mut spread = room(kernels, per_output, lanes, padded);
    let target = Shared::new(spread.slice());
    each(lanes.div_ceil(CHANNELS), |index| {
        let range = piece(index, CHANNELS, lanes);
        // SAFETY: rows `range` of the weight exist, and each piece fills columns of its own.
        unsafe {
            (kernels.table.transpose)(
                range.len(),
                per_output,
                weight.as_ptr().add(range.start * per_output),
                per_output,
                target.at(range.start),
                padded,
            );
        }
    });
    Spread {
        weights: spread,
        depth,
        lanes: padded,
    }
}

/// Spreads weights for a sum over the output's channels.
pub(super) fn by_input<'a>(kernels: &'a Kernels, shape: &Conv2d, weight: &[f32]) -> Spread<'a> {
    let (depth, lanes, taps) = (shape.out_channels, shape.in_channels, shape.taps());
    let padded = lanes.next_multiple_of(kernels.table.lanes);
    let mut spread = room(kernels, depth * taps, lanes, padded);
    let target = Shared::new(spread.slice());
    each(depth.div_ceil(CHANNELS), |index| {
        for output in piece(index, CHANNELS, depth) {
            // SAFETY: each output channel has a matrix of its own on both sides.
            unsafe {
                (kernels.table.transpose)(
                    lanes,
                    taps,
                    weight.as_ptr().add(output * lanes * taps),
                    taps,
                    target.at(output * taps * padded),
                    padded,
                );
            }
        }
    });
    Spread {
        weights: spread,
        depth,
        lanes: padded,
    }
}

/// Takes scratch memory for rows of lanes, with zeros in the padding.
fn room(kernels: &Kernels, rows: usize, lanes: usize, padded: usize) -> Lease<'_> {
    if lanes == padded {
        return kernels.workspace.take(rows * padded);
    }
    kernels.workspace.zeros(rows * padded)
}

/// Converts a gradient from the spread form (summed over the input's channels) to \[out, in,
/// height, width\].
pub(super) fn gather(
    kernels: &Kernels,
    (rows, outputs): (usize, usize),
    spread: &mut [f32],
    gradient: &mut [f32],
) {
    let padded = outputs.next_multiple_of(kernels.table.lanes);
    let (source, target) = (Shared::new(spread), Shared::new(gradient));
    each(outputs.div_ceil(CHANNELS), |index| {
        let range = piece(index, CHANNELS, outputs);
        // SAFETY: each piece reads columns and fills rows of its own.
        unsafe {
            (kernels.table.transpose)(
                rows,
                range.len(),
                source.at(range.start),
                padded,
                target.at(range.start * rows),
                rows,
            );
        }
    });
}

/// Arranges spread weights in panels two vectors wide: \[panel\]\[tap\]\[depth\]\[lane\].
pub(super) fn panels<'a>(
    kernels: &'a Kernels,
    mut spread: Spread<'a>,
    taps: usize,
    flip: bool,
) -> Lease<'a> {
    let (depth, lanes) = (spread.depth, spread.lanes);
    let panel = 2 * kernels.table.lanes;
    let count = lanes.div_ceil(panel);
    let mut packed = kernels.workspace.take(count * taps * depth * panel);
    let target = Shared::new(packed.slice());
    let source = spread.weights.slice();
    each(count * taps, |index| {
        let (first, tap) = (index / taps * panel, index % taps);
        let from = if flip { taps - 1 - tap } else { tap };
        let width = panel.min(lanes - first);
        for row in 0..depth {
            let start = (row * taps + from) * lanes + first;
            // SAFETY: each piece fills rows of its own.
            let to = unsafe {
                let start = (index * depth + row) * panel;
                target.slice(start..start + width)
            };
            to.copy_from_slice(&source[start..start + width]);
        }
    });
    packed
}
