//! Convolution by Winograd's F(4×4, 3×3): transform, 36 matrix products, transform back. It works
//! on a group of tiles at a time, so that the transformed tiles stay in the second-level cache.

use super::shape::Geometry;
use super::weights::Spread;
use crate::cpu::kernels::Kernels;
use crate::cpu::parallel::{Shared, each, piece};
use crate::cpu::table::Table;
use crate::cpu::vector::tile::Block;
use crate::cpu::vector::winograd::Strip;

/// Approximate tiles per group: fewer leave more of the second-level cache to the weights.
const TILES: usize = 32;
/// Padding between planes, in elements: with a power of two, all 36 streams would fall into one set
/// of the first-level cache.
pub(super) const PLANE_GAP: usize = 16;
/// Depth rows of weights that are transformed at a time.
const ROWS: usize = 8;

/// Strips of tiles (four rows of an output image), and their grouping.
#[derive(Clone, Copy)]
pub(super) struct Strips {
    /// Strips per image.
    pub per_image: usize,
    /// Tiles per strip.
    pub tiles: usize,
    /// Strips of all images.
    pub total: usize,
    /// Strips per group.
    pub group: usize,
}

impl Strips {
    /// Forms groups of about `together` tiles.
    pub(super) fn new(geometry: &Geometry, together: usize) -> Self {
        let per_image = geometry.out_height.div_ceil(4);
        let tiles = geometry.out_width.div_ceil(4);
        Self {
            per_image,
            tiles,
            total: geometry.batch * per_image,
            group: (together / tiles).max(1),
        }
    }

    pub(super) fn groups(&self) -> usize {
        self.total.div_ceil(self.group)
    }
}

/// Returns the strip `index` of the input.
pub(super) fn input_strip(
    geometry: &Geometry,
    strips: &Strips,
    index: usize,
    plane: [usize; 2],
) -> (Strip, usize) {
    let strip = Strip {
        height: geometry.height,
        width: geometry.width,
        pixel: geometry.input,
        channels: geometry.input,
        row: index % strips.per_image,
        tiles: strips.tiles,
        padding: geometry.padding,
        plane: plane[0],
        step: plane[1],
    };
    let image = index / strips.per_image * geometry.height * geometry.width * geometry.input;
    (strip, image)
}

/// Returns the strip `index` of the output with its first `channels` channels.
pub(super) fn output_strip(
    geometry: &Geometry,
    strips: &Strips,
    index: usize,
    channels: usize,
    plane: [usize; 2],
) -> (Strip, usize) {
    let strip = Strip {
        height: geometry.out_height,
        width: geometry.out_width,
        pixel: geometry.output,
        channels,
        row: index % strips.per_image,
        tiles: strips.tiles,
        padding: [0, 0],
        plane: plane[0],
        step: plane[1],
    };
    let pixels = geometry.out_height * geometry.out_width;
    (strip, index / strips.per_image * pixels * geometry.output)
}

/// Fills 36 planes of `weight_plane` elements with the transformed weights, in panels of two
/// vectors; `flip` mirrors the taps.
fn transform_weights(
    table: &Table,
    spread: &mut Spread<'_>,
    flip: bool,
    planes: &mut [f32],
    weight_plane: usize,
) {
    let (depth, lanes, panel) = (spread.depth, spread.lanes, 2 * table.lanes);
    let target = Shared::new(planes);
    let taps = spread.weights.slice();
    each(depth.div_ceil(ROWS), |index| {
        for row in piece(index, ROWS, depth) {
            // SAFETY: nine rows of taps belong to each row of the depth, which fills its own part
            // of the panels.
            unsafe {
                (table.winograd_weight)(
                    taps.as_ptr().add(row * 9 * lanes),
                    lanes,
                    flip,
                    target.at(row * panel),
                    weight_plane,
                    panel,
                    depth * panel,
                );
            }
        }
    });
}

/// Computes the convolution of `input` with spread weights; `flip` mirrors the taps.
pub(super) fn forward(
    kernels: &Kernels,
    geometry: &Geometry,
    mut spread: Spread<'_>,
    flip: bool,
    input: &[f32],
    output: &mut [f32],
) {
    let table = kernels.table;
    let (depth, lanes, panel) = (spread.depth, spread.lanes, 2 * table.lanes);
    let panel_step = depth * panel;
    let weight_plane = lanes.div_ceil(panel) * panel_step + PLANE_GAP;
    let mut weights = kernels.workspace.take(36 * weight_plane);
    transform_weights(table, &mut spread, flip, weights.slice(), weight_plane);

    let strips = Strips::new(geometry, TILES);
    let step = depth.next_multiple_of(table.lanes);
    let weights = &*weights.slice();
    let output = Shared::new(output);
    each(strips.groups(), |group| {
        let range = piece(group, strips.group, strips.total);
        let tiles = range.len() * strips.tiles;
        let (plane_in, plane_out) = (tiles * step + PLANE_GAP, tiles * lanes + PLANE_GAP);
        let mut transformed = kernels.workspace.take(36 * plane_in);
        let mut products = kernels.workspace.take(36 * plane_out);
        let (transformed, products) = (transformed.pointer(), products.pointer());
        // SAFETY: the planes have room for all tiles of the group; strips read the input in place
        // and write rows of the output that belong to them alone.
        unsafe {
            for (place, index) in range.clone().enumerate() {
                let (strip, image) = input_strip(geometry, &strips, index, [plane_in, step]);
                let planes = transformed.add(place * strips.tiles * step);
                (table.winograd_input)(&strip, input.as_ptr().add(image), planes);
            }
            for index in 0..36 {
                for first in (0..lanes).step_by(panel) {
                    (table.block)(&Block {
                        rows: tiles,
                        columns: panel.min(lanes - first),
                        depth,
                        runs: 1,
                        a: transformed.add(index * plane_in),
                        a_row: step,
                        a_step: 1,
                        a_run: 0,
                        b: weights
                            .as_ptr()
                            .add(index * weight_plane + first / panel * panel_step),
                        b_step: panel,
                        b_run: 0,
                        c: products.add(index * plane_out + first),
                        c_row: lanes,
                        add: false,
                    });
                }
            }
            for (place, index) in range.enumerate() {
                let plane = [plane_out, lanes];
                let (strip, image) = output_strip(geometry, &strips, index, geometry.output, plane);
                let planes = products.add(place * strips.tiles * lanes);
                (table.winograd_output)(&strip, planes, output.at(image));
            }
        }
    });
}
