//! The weight's gradient in Winograd's domain: transform input and gradient, multiply, sum over all
//! tiles, and transform the sums back.

use super::shape::Geometry;
use super::weights;
use super::winograd::{PLANE_GAP, Strips, input_strip, output_strip};
use crate::cpu::kernels::Kernels;
use crate::cpu::parallel::{Shared, each};
use crate::cpu::vector::tile::Block;

/// Approximate tiles per group: the depth of the products.
const TILES: usize = 64;
/// Maximum number of elements of all partial sums together, unless there are only two sums.
const PARTIAL_ELEMENTS: usize = 6 << 20;
/// Maximum number of partial sums. It is fixed, so that the result does not depend on the number of
/// threads.
const PARTS: usize = 16;
/// Output channels that are computed at a time.
const CHANNELS: usize = 128;

/// The division of the sum: into parts of the batch and blocks of output channels.
struct Division {
    parts: usize,
    blocks: usize,
    /// Elements between the planes of a partial sum.
    plane: usize,
}

/// Computes the gradient of the weight.
pub(super) fn weight(
    kernels: &Kernels,
    geometry: &Geometry,
    input: &[f32],
    gradient: &[f32],
    result: &mut [f32],
) {
    let strips = Strips::new(geometry, TILES);
    let rows = geometry.input;
    let lanes = geometry.output.next_multiple_of(kernels.table.lanes);
    let plane = rows * lanes.min(CHANNELS) + PLANE_GAP;
    let division = Division {
        parts: (PARTIAL_ELEMENTS / (36 * rows * lanes))
            .clamp(2, PARTS)
            .min(strips.groups()),
        blocks: geometry.output.div_ceil(CHANNELS),
        plane,
    };
    let mut partial: Vec<_> = (0..division.parts * division.blocks)
        .map(|_| kernels.workspace.take(36 * plane))
        .collect();
    let sums: Vec<_> = partial
        .iter_mut()
        .map(|sum| Shared::new(sum.slice()))
        .collect();
    each(sums.len(), |index| {
        // SAFETY: each index has a partial sum of its own, with room for 36 planes.
        let sum = unsafe { sums[index].at(0) };
        part(
            kernels,
            geometry,
            (&strips, &division),
            index,
            (input, gradient),
            sum,
        );
    });

    let mut spread = kernels.workspace.take(rows * 9 * lanes);
    let target = Shared::new(spread.slice());
    each(rows, |row| {
        for block in 0..division.blocks {
            let first = block * CHANNELS;
            let width = CHANNELS.min(lanes - first);
            // SAFETY: the row lies within every plane of every partial sum; no other index touches
            // it, nor the nine rows of the result.
            unsafe {
                let sum = sums[block].at(row * width);
                for part in 1..division.parts {
                    let more = sums[part * division.blocks + block].at(row * width);
                    for index in 0..36 {
                        let place = index * plane;
                        (kernels.table.accumulate)(width, more.add(place), sum.add(place));
                    }
                }
                let taps = target.at(row * 9 * lanes + first);
                (kernels.table.winograd_weight_gradient)(sum, plane, width, taps, lanes);
            }
        }
    });
    weights::gather(kernels, (rows * 9, geometry.output), spread.slice(), result);
}

/// Computes one partial sum, over part of the batch and some of the output channels.
fn part(
    kernels: &Kernels,
    geometry: &Geometry,
    (strips, division): (&Strips, &Division),
    index: usize,
    (input, gradient): (&[f32], &[f32]),
    sum: *mut f32,
) {
    let table = kernels.table;
    let (part, first) = (index / division.blocks, index % division.blocks * CHANNELS);
    let channels = CHANNELS.min(geometry.output - first);
    let lanes = channels.next_multiple_of(table.lanes);
    let step = geometry.input.next_multiple_of(table.lanes);
    let panel = 2 * table.lanes;
    let most = strips.group * strips.tiles;
    let mut inputs = kernels.workspace.take(36 * (most * step + PLANE_GAP));
    let mut gradients = kernels.workspace.take(36 * (most * lanes + PLANE_GAP));
    let (inputs, gradients) = (inputs.pointer(), gradients.pointer());
    let groups = strips.groups();
    let (start, end) = (
        part * groups / division.parts,
        (part + 1) * groups / division.parts,
    );
    for group in start..end {
        let range = crate::cpu::parallel::piece(group, strips.group, strips.total);
        let tiles = range.len() * strips.tiles;
        let (plane_in, plane_out) = (tiles * step + PLANE_GAP, tiles * lanes + PLANE_GAP);
        // SAFETY: the planes have room for all tiles of the group, `sum` for 36 planes; strips are
        // read in place.
        unsafe {
            for (place, index) in range.enumerate() {
                let (strip, image) = input_strip(geometry, strips, index, [plane_in, step]);
                let planes = inputs.add(place * strips.tiles * step);
                (table.winograd_input)(&strip, input.as_ptr().add(image), planes);
                let plane = [plane_out, lanes];
                let (strip, image) = output_strip(geometry, strips, index, channels, plane);
                let planes = gradients.add(place * strips.tiles * lanes);
                (table.winograd_gradient)(&strip, gradient.as_ptr().add(image + first), planes);
            }
            for index in 0..36 {
                for column in (0..lanes).step_by(panel) {
                    (table.block)(&Block {
                        rows: geometry.input,
                        columns: panel.min(lanes - column),
                        depth: tiles,
                        runs: 1,
                        a: inputs.add(index * plane_in),
                        a_row: 1,
                        a_step: step,
                        a_run: 0,
                        b: gradients.add(index * plane_out + column),
                        b_step: lanes,
                        b_run: 0,
                        c: sum.add(index * division.plane + column),
                        c_row: lanes,
                        add: group > start,
                    });
                }
            }
        }
    }
}
