//! Gradients of the direct convolution, for any window, stride and padding.

use super::direct::pad;
use super::shape::{Conv2d, Geometry};
use super::weights::{Spread, gather, panels};
use crate::cpu::kernels::Kernels;
use crate::cpu::parallel::{Shared, each};
use crate::cpu::vector::tile::Block;

/// Maximum number of elements of all partial sums together, unless there are only two sums.
const PARTIAL_ELEMENTS: usize = 6 << 20;
/// Maximum number of partial sums. It is fixed, so that the result does not depend on the number of
/// threads.
const PARTS: usize = 16;
/// Pixels that are summed at a time, so that they stay in the L1 cache.
const PIXELS: usize = 64;

/// The input's gradient if it is no convolution: every tap adds its product to its pixels in a
/// padded image.
pub(super) fn input(
    kernels: &Kernels,
    shape: &Conv2d,
    geometry: &Geometry,
    spread: Spread<'_>,
    gradient: &[f32],
    result: &mut [f32],
) {
    let table = kernels.table;
    let panel = 2 * table.lanes;
    let (depth, lanes, taps) = (geometry.output, geometry.input, shape.taps());
    let mut packed = panels(kernels, spread, taps, false);
    let packed = &*packed.slice();
    let [above, left] = geometry.padding;
    let padded_row = (geometry.width + 2 * left) * lanes;
    let padded_rows = geometry.height + 2 * above;
    let (row_in, row_out) = (geometry.width * lanes, geometry.out_width * depth);
    let image = geometry.height * row_in;
    let result = Shared::new(result);
    each(geometry.batch, |number| {
        let mut scratch = kernels.workspace.zeros(padded_rows * padded_row);
        let sums = scratch.pointer();
        for column in (0..lanes).step_by(panel) {
            for tap in 0..taps {
                let (y, x) = (tap / shape.kernel[1], tap % shape.kernel[1]);
                for row in 0..geometry.out_height {
                    // SAFETY: the window's pixels lie within the padded image, the gradient's row
                    // within the gradient, the tap's panel within the packed weights.
                    unsafe {
                        let place = (row * shape.stride[0] + y) * padded_row + x * lanes;
                        (table.block)(&Block {
                            rows: geometry.out_width,
                            columns: panel.min(lanes - column),
                            depth,
                            runs: 1,
                            a: gradient
                                .as_ptr()
                                .add((number * geometry.out_height + row) * row_out),
                            a_row: depth,
                            a_step: 1,
                            a_run: 0,
                            b: packed.as_ptr().add((column * taps + tap * panel) * depth),
                            b_step: panel,
                            b_run: 0,
                            c: sums.add(place + column),
                            c_row: shape.stride[1] * lanes,
                            add: true,
                        });
                    }
                }
            }
        }
        // SAFETY: every index has an image of its own.
        let image = unsafe { result.slice(number * image..(number + 1) * image) };
        let padded = scratch.slice().chunks_exact(padded_row).skip(above);
        for (row, padded) in image.chunks_exact_mut(row_in).zip(padded) {
            row.copy_from_slice(&padded[left * lanes..][..row_in]);
        }
    });
}

/// Computes the weight's gradient: for every row of taps, the product of the transposed image and
/// the gradient.
pub(super) fn weight(
    kernels: &Kernels,
    shape: &Conv2d,
    geometry: &Geometry,
    input: &[f32],
    gradient: &[f32],
    result: &mut [f32],
) {
    let taps = shape.taps();
    let rows = taps * geometry.input;
    let lanes = geometry.output.next_multiple_of(kernels.table.lanes);
    let parts = (PARTIAL_ELEMENTS / (rows * lanes))
        .clamp(2, PARTS)
        .min(geometry.batch);
    let mut partial: Vec<_> = (0..parts)
        .map(|_| kernels.workspace.take(rows * lanes))
        .collect();
    let sums: Vec<_> = partial
        .iter_mut()
        .map(|sum| Shared::new(sum.slice()))
        .collect();
    let image = geometry.height * geometry.width * geometry.input;
    let image_out = geometry.out_height * geometry.out_width * geometry.output;
    each(parts, |part| {
        let images = part * geometry.batch / parts..(part + 1) * geometry.batch / parts;
        for (place, number) in images.enumerate() {
            let input = &input[number * image..][..image];
            let gradient = &gradient[number * image_out..][..image_out];
            let add = place > 0;
            // SAFETY: every part has a sum of its own, with room for all rows.
            unsafe {
                let sum = sums[part].at(0);
                sum_image(kernels, shape, geometry, (input, gradient), sum, add);
            };
        }
    });

    let mut spread = kernels.workspace.take(rows * lanes);
    let target = Shared::new(spread.slice());
    each(rows, |row| {
        let (tap, channel) = (row / geometry.input, row % geometry.input);
        // SAFETY: no other index touches this row of the sums, nor its place in the result.
        unsafe {
            let to = target.at((channel * taps + tap) * lanes);
            to.copy_from_nonoverlapping(sums[0].at(row * lanes), lanes);
            for sum in &sums[1..] {
                (kernels.table.accumulate)(lanes, sum.at(row * lanes), to);
            }
        }
    });
    gather(kernels, (rows, geometry.output), spread.slice(), result);
}

/// Writes or adds the contribution of one image to `sum`, \[tap\]\[in\]\[lane\].
///
/// # Safety
///
/// `sum` is good for all rows of whole vectors, and nothing else touches it.
unsafe fn sum_image(
    kernels: &Kernels,
    shape: &Conv2d,
    geometry: &Geometry,
    (image, gradient): (&[f32], &[f32]),
    sum: *mut f32,
    add: bool,
) {
    let panel = 2 * kernels.table.lanes;
    let lanes = geometry.output.next_multiple_of(kernels.table.lanes);
    let padded_row = (geometry.width + 2 * geometry.padding[1]) * geometry.input;
    let padded_rows = geometry.height + 2 * geometry.padding[0];
    let (mut scratch, mut wide);
    let padded: &[f32] = if geometry.padding == [0, 0] {
        image
    } else {
        scratch = kernels.workspace.take(padded_rows * padded_row);
        pad(geometry, image, 0, scratch.slice());
        scratch.slice()
    };
    // Vectors are read whole, so pixels must be whole vectors wide.
    let gradient: &[f32] = if lanes == geometry.output {
        gradient
    } else {
        wide = kernels
            .workspace
            .zeros(gradient.len() / geometry.output * lanes);
        for (to, from) in wide
            .slice()
            .chunks_exact_mut(lanes)
            .zip(gradient.chunks_exact(geometry.output))
        {
            to[..geometry.output].copy_from_slice(from);
        }
        wide.slice()
    };
    let run = shape.kernel[1] * geometry.input;
    let band = (PIXELS / geometry.out_width).max(1);
    for first in (0..geometry.out_height).step_by(band) {
        let count = band.min(geometry.out_height - first);
        for y in 0..shape.kernel[0] {
            for column in (0..lanes).step_by(panel) {
                // SAFETY: the windows of `count` rows lie within the padded image and the gradient;
                // `sum` is guaranteed by the caller.
                unsafe {
                    let row = first * shape.stride[0] + y;
                    (kernels.table.block)(&Block {
                        rows: run,
                        columns: panel.min(lanes - column),
                        depth: geometry.out_width,
                        runs: count,
                        a: padded.as_ptr().add(row * padded_row),
                        a_row: 1,
                        a_step: shape.stride[1] * geometry.input,
                        a_run: shape.stride[0] * padded_row,
                        b: gradient
                            .as_ptr()
                            .add(first * geometry.out_width * lanes + column),
                        b_step: lanes,
                        b_run: geometry.out_width * lanes,
                        c: sum.add(y * run * lanes + column),
                        c_row: lanes,
                        add: add || first > 0,
                    });
                }
            }
        }
    }
}
