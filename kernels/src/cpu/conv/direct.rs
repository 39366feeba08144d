//! The direct convolution as an implicit matrix product. Rows of the padded image are read in
//! place, because NHWC makes all columns and channels of a window's row adjacent.

use super::shape::{Conv2d, Geometry};
use super::weights::{Spread, panels};
use crate::cpu::kernels::Kernels;
use crate::cpu::parallel::{Shared, each, piece};
use crate::cpu::vector::tile::Block;

/// Minimum number of pieces of work, if the images have as many rows.
const PIECES: usize = 16;

/// Copies rows of an image (from `first`, counted with the padding), with zeros around them.
///
/// `to` has `rows` rows of `width + 2 · padding` pixels.
pub(super) fn pad(geometry: &Geometry, image: &[f32], first: usize, to: &mut [f32]) {
    let [above, left] = geometry.padding;
    let row = geometry.width * geometry.input;
    let left = left * geometry.input;
    for (index, padded) in to.chunks_exact_mut(row + 2 * left).enumerate() {
        let source = (first + index)
            .checked_sub(above)
            .and_then(|index| image.chunks_exact(row).nth(index));
        match source {
            Some(source) => {
                padded[..left].fill(0.0);
                padded[left..left + row].copy_from_slice(source);
                padded[left + row..].fill(0.0);
            }
            None => padded.fill(0.0),
        }
    }
}

/// Computes the convolution of `input` with spread weights; `flip` mirrors the taps.
pub(super) fn forward(
    kernels: &Kernels,
    shape: &Conv2d,
    geometry: &Geometry,
    spread: Spread<'_>,
    flip: bool,
    input: &[f32],
    output: &mut [f32],
) {
    let table = kernels.table;
    let panel = 2 * table.lanes;
    let lanes = geometry.output;
    let run = shape.kernel[1] * geometry.input;
    let mut packed = panels(kernels, spread, shape.taps(), flip);
    let packed = &*packed.slice();
    let bands = PIECES.div_ceil(geometry.batch).min(geometry.out_height);
    let band = geometry.out_height.div_ceil(bands);
    let bands = geometry.out_height.div_ceil(band);
    let padded_row = (geometry.width + 2 * geometry.padding[1]) * geometry.input;
    let image = geometry.height * geometry.width * geometry.input;
    let output_row = geometry.out_width * lanes;
    let output = Shared::new(output);
    each(geometry.batch * bands, |index| {
        let number = index / bands;
        let rows = piece(index % bands, band, geometry.out_height);
        let first = rows.start * shape.stride[0];
        let count = (rows.len() - 1) * shape.stride[0] + shape.kernel[0];
        let source = &input[number * image..][..image];
        let mut scratch;
        let padded: &[f32] = if geometry.padding == [0, 0] {
            &source[first * padded_row..]
        } else {
            scratch = kernels.workspace.take(count * padded_row);
            pad(geometry, source, first, scratch.slice());
            scratch.slice()
        };
        for column in (0..lanes).step_by(panel) {
            for row in 0..rows.len() {
                // SAFETY: the rows of the windows lie within `padded`, the panel within the packed
                // weights (whole vectors: panels are as wide as two), and this row of the output
                // belongs to this piece alone.
                unsafe {
                    let place = (number * geometry.out_height + rows.start + row) * output_row;
                    (table.block)(&Block {
                        rows: geometry.out_width,
                        columns: panel.min(lanes - column),
                        depth: run,
                        runs: shape.kernel[0],
                        a: padded.as_ptr().add(row * shape.stride[0] * padded_row),
                        a_row: shape.stride[1] * geometry.input,
                        a_step: 1,
                        a_run: padded_row,
                        b: packed.as_ptr().add(column * shape.kernel[0] * run),
                        b_step: panel,
                        b_run: run * panel,
                        c: output.at(place + column),
                        c_row: lanes,
                        add: false,
                    });
                }
            }
        }
    });
}
