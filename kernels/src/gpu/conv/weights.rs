//! The gradient of a convolution's weight, as a matrix product that is never written out: a row per
//! channel of the result, a column per number under the window, and a sum over all pixels of the
//! result. Warpgroups compute its transpose, as they take rows by 64 and columns by eight.
//!
//! That sum is long and the product small. So several cubes take parts of the sum, which are then
//! added up in order: every run gives the same bits.

use cubecl::prelude::*;

use super::super::split::halves_of;
use super::super::tensor_cores::{Keep, Sums, VECTOR, copy};
use super::super::warpgroup::{IN_ROW, NUMBERS, place};
use super::product::{Feed, FeedExpand, product, row_and_column, row_of_pair};
use super::shape::Slide;
use super::tile::{Instruction, STAGE_DEPTH, Tile};

/// Writes the sums of the parts, \[part, features, window rows, window columns, channels\].
#[cube(launch_unchecked, address_type = "dynamic")]
pub(super) fn multiply_parts<F: Float, V: Size, P: Size>(
    images: &[Vector<F, V>],
    gradient: &[Vector<F, V>],
    out: &mut [Vector<f32, P>],
    pixels: u32,
    steps: u32,
    #[comptime] slide: Slide,
    #[comptime] tile: Tile,
    #[define(F)] _dtype: ElemType,
) {
    let first = CUBE_POS_Z * steps * comptime!(STAGE_DEPTH as u32);
    let end = first + steps * comptime!(STAGE_DEPTH as u32);
    let part = Part {
        first,
        end: select(end < pixels, end, pixels),
        slide,
    };
    let steps = steps * comptime!(slide.terms());
    let sums = if comptime!(tile.has_rows_of_channels()) {
        product::<F, V, Part>(&part, gradient, images, steps, tile)
    } else {
        product::<F, V, Part>(&part, images, gradient, steps, tile)
    };
    if comptime!(tile.has_rows_of_channels()) {
        write_rows::<P>(&sums, out, slide, tile);
    } else {
        write_columns::<P>(&sums, out, slide, tile);
    }
}

/// Cubes for the numbers under the window, and for the channels of the result.
pub(super) fn cubes(slide: Slide, tile: Tile) -> [u32; 2] {
    [
        slide.under_window().div_ceil(tile.under_window() as u32),
        slide.features.div_ceil(tile.channels() as u32),
    ]
}

/// Numbers of a vector of a part that are written at once. Neighbours in a row of the product are
/// channels of the result if these are not its rows; then they are no neighbours in a part.
pub(super) const fn written_at_once(tile: Tile) -> usize {
    if tile.has_rows_of_channels() { 2 } else { 1 }
}

/// Returns true if a block is channels of one place in the window. Blocks of neighbouring places
/// are then consecutive, so that a cube soon copies the same pixels again.
const fn is_divided(slide: Slide) -> bool {
    slide.depth.is_multiple_of(NUMBERS as u32)
}

/// The pixels of a part: the gradients of a step's pixels, and the numbers under the window there.
#[derive(CubeType)]
struct Part {
    first: u32,
    end: u32,
    #[cube(comptime)]
    slide: Slide,
}

/// One of a unit's copies of one of the factors.
#[derive(CubeType)]
struct Spot {
    /// Index of a step's pixel.
    pixel: u32,
    /// Index of a vector of a cube's rows, or columns.
    vector: u32,
    /// Place in the factor's stage.
    to: u32,
    is_there: bool,
}

/// The copy of this number, of a factor with `numbers` rows or columns, `pitch` vectors apart.
#[cube]
fn spot(
    #[comptime] copy_number: usize,
    #[comptime] numbers: usize,
    #[comptime] pitch: u32,
    #[comptime] tile: Tile,
) -> Spot {
    let vectors = comptime!(STAGE_DEPTH * numbers / VECTOR);
    let at = UNIT_POS + comptime!((copy_number * tile.units()) as u32);
    let all = comptime!((copy_number + 1) * tile.units() <= vectors);
    let is_there = all || at < comptime!(vectors as u32);
    match comptime!(tile.instruction) {
        Instruction::Mma => {
            let chunks = comptime!((numbers / VECTOR) as u32);
            Spot {
                pixel: at / chunks,
                vector: at % chunks,
                to: at / chunks * pitch + at % chunks,
                is_there,
            }
        }
        // A row of a block is a pixel: a plane copies to eight of them.
        Instruction::Wgmma => {
            let in_row = comptime!(IN_ROW as u32);
            let row = at / in_row;
            Spot {
                pixel: row % comptime!(STAGE_DEPTH as u32),
                vector: row / comptime!(STAGE_DEPTH as u32) * in_row + at % in_row,
                to: place(row, at % in_row),
                is_there,
            }
        }
    }
}

#[cube]
impl Feed for Part {
    fn begin<F: Float, V: Size>(
        &self,
        first: &[Vector<F, V>],
        second: &[Vector<F, V>],
        stages: &mut [Vector<F, V>],
        step: u32,
        is_there: bool,
        to: u32,
        #[comptime] copy_number: usize,
        #[comptime] tile: Tile,
    ) {
        let slide = comptime!(self.slide);
        // All terms of the same pixels, one after the other.
        let (term, step) = (
            step % comptime!(slide.terms()),
            step / comptime!(slide.terms()),
        );
        let pixel = self.first + step * comptime!(STAGE_DEPTH as u32);
        let end = select(is_there, self.end, 0u32);

        let [of_first, _] = comptime!(tile.copies());
        let is_first = comptime!(copy_number < of_first);
        let (copy_number, numbers, pitch, before) = comptime!(match is_first {
            true => (copy_number, tile.rows(), tile.first_pitch(), 0),
            false => (
                copy_number - of_first,
                tile.columns(),
                tile.second_pitch(),
                tile.first_vectors(),
            ),
        });
        let factor = if comptime!(is_first) { first } else { second };
        let spot = spot(copy_number, numbers, pitch, tile);
        let (pixel, to) = (pixel + spot.pixel, to + before + spot.to);
        if spot.is_there {
            if comptime!(is_first == tile.has_rows_of_channels()) {
                copy_gradient::<F, V>(
                    factor,
                    stages,
                    pixel,
                    end,
                    term,
                    spot.vector,
                    to,
                    slide,
                    tile,
                );
            } else {
                copy_images::<F, V>(
                    factor,
                    stages,
                    pixel,
                    end,
                    term,
                    spot.vector,
                    to,
                    slide,
                    tile,
                );
            }
        }
    }
}

/// Copies a vector of a cube's channels of the gradient of a pixel of the result.
#[cube]
fn copy_gradient<F: Float, V: Size>(
    gradient: &[Vector<F, V>],
    stages: &mut [Vector<F, V>],
    pixel: u32,
    end: u32,
    term: u32,
    vector: u32,
    to: u32,
    #[comptime] slide: Slide,
    #[comptime] tile: Tile,
) {
    let vectors = comptime!(slide.features / VECTOR as u32);
    let (half, _) = halves_of(term, vectors);
    let in_cube = comptime!(tile.channels() / VECTOR);
    let vector = CUBE_POS_Y * comptime!(in_cube as u32) + vector;
    copy::<F, V>(
        gradient,
        pixel * comptime!(slide.halves() * vectors) + half + vector,
        stages,
        to,
        pixel < end && vector < vectors,
        Keep::Far,
    );
}

/// Copies a vector of the numbers that a cube sees under the window at a pixel of the result.
#[cube]
fn copy_images<F: Float, V: Size>(
    images: &[Vector<F, V>],
    stages: &mut [Vector<F, V>],
    pixel: u32,
    end: u32,
    term: u32,
    vector: u32,
    to: u32,
    #[comptime] slide: Slide,
    #[comptime] tile: Tile,
) {
    let vectors = comptime!(slide.depth / VECTOR as u32);
    let (_, half) = halves_of(term, vectors);
    let [window_height, window_width] = comptime!(slide.window);
    let [out_height, out_width] = comptime!(slide.result);
    let [height, width] = comptime!(slide.source);
    let in_cube = comptime!(tile.under_window());
    // Neighbouring parts of the window cover the same pixels.
    let keep = comptime!(
        if in_cube > slide.depth as usize || tile.instruction == Instruction::Wgmma {
            slide.keep()
        } else {
            Keep::Far
        }
    );
    let vector = CUBE_POS_X * comptime!((in_cube / VECTOR) as u32) + vector;
    let (in_window, vector) = under_window(vector, slide, tile);
    let image = pixel / comptime!(out_height * out_width);
    // These are very large above and left of an image.
    let row = pixel / out_width % out_height * comptime!(slide.stride[0])
        + in_window / window_width
        - comptime!(slide.padding[0]);
    let column = pixel % out_width * comptime!(slide.stride[1]) + in_window % window_width
        - comptime!(slide.padding[1]);
    let is_seen = pixel < end
        && vector < vectors
        && in_window < comptime!(window_height * window_width)
        && row < height
        && column < width;
    copy::<F, V>(
        images,
        ((image * height + row) * width + column) * comptime!(slide.halves() * vectors)
            + half
            + vector,
        stages,
        to,
        is_seen,
        keep,
    );
}

/// The place under the window, and the vector of its channels, for a vector of the product's rows,
/// or columns.
#[cube]
fn under_window(vector: u32, #[comptime] slide: Slide, #[comptime] tile: Tile) -> (u32, u32) {
    if comptime!(tile.instruction == Instruction::Wgmma && is_divided(slide)) {
        let places = comptime!(slide.window[0] * slide.window[1]);
        let in_row = comptime!(IN_ROW as u32);
        let block = vector / in_row;
        (block % places, block / places * in_row + vector % in_row)
    } else {
        let vectors = comptime!(slide.depth / VECTOR as u32);
        (vector / vectors, vector % vectors)
    }
}

/// Writes a product whose rows are channels of the result.
#[cube]
fn write_rows<P: Size>(
    sums: &Sums,
    out: &mut [Vector<f32, P>],
    #[comptime] slide: Slide,
    #[comptime] tile: Tile,
) {
    let (row, column) = row_and_column(tile);
    let row = CUBE_POS_Y * comptime!(tile.rows() as u32) + row;
    let column = CUBE_POS_X * comptime!(tile.columns() as u32) + column + UNIT_POS % 4 * 2;
    #[unroll]
    for down in 0..comptime!(2 * tile.tiles[0]) {
        let feature = row + comptime!(row_of_pair(down, tile));
        #[unroll]
        for beside in 0..comptime!(tile.tiles[1]) {
            let column = column + comptime!((beside * 8) as u32);
            if feature < comptime!(slide.features) && column < comptime!(slide.under_window()) {
                let pair = sums.pair(
                    comptime!(down / 2 * tile.tiles[1] + beside),
                    comptime!(down % 2),
                );
                let mut two = Vector::<f32, P>::empty();
                two.insert(0usize, pair.extract(0usize));
                two.insert(1usize, pair.extract(1usize));
                let at = (CUBE_POS_Z * comptime!(slide.features) + feature)
                    * comptime!(slide.under_window() / 2)
                    + column / 2;
                out[at as usize] = two;
            }
        }
    }
}

/// Writes a product whose columns are channels of the result.
#[cube]
fn write_columns<P: Size>(
    sums: &Sums,
    out: &mut [Vector<f32, P>],
    #[comptime] slide: Slide,
    #[comptime] tile: Tile,
) {
    let (row, column) = row_and_column(tile);
    let row = CUBE_POS_X * comptime!(tile.rows() as u32) + row;
    let column = CUBE_POS_Y * comptime!(tile.columns() as u32) + column + UNIT_POS % 4 * 2;
    let places = comptime!(slide.window[0] * slide.window[1]);
    #[unroll]
    for down in 0..comptime!(2 * tile.tiles[0]) {
        let row = row + comptime!(row_of_pair(down, tile));
        let in_vector = row % comptime!(VECTOR as u32);
        let (in_window, vector) = under_window(row / comptime!(VECTOR as u32), slide, tile);
        let channel = vector * comptime!(VECTOR as u32) + in_vector;
        let is_inside = in_window < places && channel < comptime!(slide.depth);
        #[unroll]
        for beside in 0..comptime!(tile.tiles[1]) {
            let pair = sums.pair(
                comptime!(down / 2 * tile.tiles[1] + beside),
                comptime!(down % 2),
            );
            #[unroll]
            for one in 0..2usize {
                let feature = column + comptime!((beside * 8 + one) as u32);
                if is_inside && feature < comptime!(slide.features) {
                    let at = (CUBE_POS_Z * comptime!(slide.features) + feature)
                        * comptime!(slide.under_window())
                        + in_window * comptime!(slide.depth)
                        + channel;
                    out[at as usize] = Vector::<f32, P>::new(pair.extract(one));
                }
            }
        }
    }
}
