//! The convolution and the gradient of its images, as one matrix product that is never written out:
//! a row per pixel of the result, a column per channel of it, and a sum over the numbers under the
//! window.
//!
//! Images are \[batch, height, width, channels\], a weight is \[channels of the result, window
//! rows, window columns, channels of the source\].

use cubecl::prelude::*;

use super::super::split::halves_of;
use super::super::tensor_cores::{Keep, LANES, Sums, VECTOR, copy};
use super::super::warpgroup::place;
use super::arrange::column_of;
use super::halo::{self, Corner};
use super::product::{Feed, FeedExpand, product, row_and_column, row_of_pair};
use super::shape::Slide;
use super::tile::{Instruction, STAGE_DEPTH, Tile};

/// Vectors per row of a stage.
const CHUNKS: usize = STAGE_DEPTH / VECTOR;

/// Rows of a stage that a plane copies at once; neighbouring lanes write to different banks.
const AT_ONCE: usize = LANES / CHUNKS;

/// Writes the result, `rows` pixels of each grid. `bias` and `plus` are read only if `added` says
/// so.
#[cube(launch_unchecked, address_type = "dynamic")]
pub(super) fn convolve<F: Float, V: Size, R: Float, Q: Size>(
    source: &[Vector<F, V>],
    weight: &[Vector<F, V>],
    bias: &[Vector<f32, Q>],
    plus: &[Vector<R, Q>],
    out: &mut [Vector<R, Q>],
    rows: u32,
    #[comptime] added: [bool; 2],
    #[comptime] slide: Slide,
    #[comptime] tile: Tile,
    #[define(F)] _of_factors: ElemType,
    #[define(R)] _of_result: ElemType,
) {
    let sums = match comptime!(tile.halo) {
        Some(halo) => halo::product::<F, V>(source, weight, rows, halo, slide, tile),
        None => in_stages::<F, V>(source, weight, rows, slide, tile),
    };
    write::<R, Q>(&sums, bias, plus, out, rows, added, slide, tile);
}

/// The product with a source that is copied again for each place of the window.
#[cube]
fn in_stages<F: Float, V: Size>(
    source: &[Vector<F, V>],
    weight: &[Vector<F, V>],
    rows: u32,
    #[comptime] slide: Slide,
    #[comptime] tile: Tile,
) -> Sums {
    let window = Window::seen(slide);
    let of_pixel = comptime!(slide.terms() * slide.depth / VECTOR as u32);
    let vectors = window.rows * window.columns * of_pixel;
    let steps = (vectors + comptime!(CHUNKS as u32 - 1)) / comptime!(CHUNKS as u32);
    let under = UnderWindow {
        corners: corners(rows, slide, tile),
        window,
        slide,
    };
    product::<F, V, UnderWindow>(&under, source, weight, steps, tile)
}

/// The part of the window that a grid sees: from the first row and column on, in steps of a stride.
#[derive(CubeType)]
struct Window {
    first_row: u32,
    first_column: u32,
    rows: u32,
    columns: u32,
    /// Divisors: its places, and its columns; 1 if a grid sees nothing.
    by_places: u32,
    by_columns: u32,
}

#[cube]
impl Window {
    fn seen(#[comptime] slide: Slide) -> Self {
        if comptime!(slide.grids() > 1) {
            let [down, beside] = comptime!(slide.stride);
            let [height, width] = comptime!(slide.window);
            let first_row = (CUBE_POS_Z / beside + comptime!(slide.padding[0])) % down;
            let first_column = (CUBE_POS_Z % beside + comptime!(slide.padding[1])) % beside;
            let rows = (comptime!(height + down - 1) - first_row) / down;
            let columns = (comptime!(width + beside - 1) - first_column) / beside;
            Window {
                first_row,
                first_column,
                rows,
                columns,
                by_places: max(rows * columns, 1u32),
                by_columns: max(columns, 1u32),
            }
        } else {
            let [height, width] = comptime!(slide.window);
            Window {
                first_row: 0u32.runtime(),
                first_column: 0u32.runtime(),
                rows: comptime!(height).runtime(),
                columns: comptime!(width).runtime(),
                by_places: comptime!(height * width).runtime(),
                by_columns: comptime!(width).runtime(),
            }
        }
    }
}

/// The pixels under the window's first number, for the rows of the product that a unit copies.
/// Pixels above or left of an image have very large coordinates.
#[derive(CubeType)]
struct Corners {
    /// Index among the pixels of all images.
    pixel: Array<u32>,
    row: Array<u32>,
    column: Array<u32>,
}

#[cube]
fn corners(rows: u32, #[comptime] slide: Slide, #[comptime] tile: Tile) -> Corners {
    let count = comptime!(tile.rows() / (AT_ONCE * tile.all_planes()));
    let mut corners = Corners {
        pixel: Array::new(count),
        row: Array::new(count),
        column: Array::new(count),
    };
    let [height, width] = comptime!(slide.grid());
    #[unroll]
    for i in 0..count {
        let at = first_row(slide, tile) + row_of_unit(i, tile);
        let image = at / comptime!(height * width);
        let row = at / width % height;
        let column = at % width;
        let (row, column) = if comptime!(slide.back) {
            let [down, beside] = comptime!(slide.stride);
            // Multiplied by the stride, then divided: rounded down like the window's first row.
            let row = row * down + CUBE_POS_Z / beside + comptime!(slide.padding[0]);
            let column = column * beside + CUBE_POS_Z % beside + comptime!(slide.padding[1]);
            (row / down, column / beside)
        } else {
            (
                row * comptime!(slide.stride[0]) - comptime!(slide.padding[0]),
                column * comptime!(slide.stride[1]) - comptime!(slide.padding[1]),
            )
        };
        let [height, width] = comptime!(slide.source);
        corners.pixel[i] = (image * height + row) * width + column;
        corners.row[i] = select(at < rows, row, 0x8000_0000u32);
        corners.column[i] = column;
    }
    corners
}

/// Returns the first row of this cube.
#[cube]
fn first_row(#[comptime] slide: Slide, #[comptime] tile: Tile) -> u32 {
    CUBE_POS_X / comptime!(slide.beside(tile)) * comptime!(tile.rows() as u32)
}

/// Returns the first column of this cube.
#[cube]
pub(super) fn first_column(#[comptime] slide: Slide, #[comptime] tile: Tile) -> u32 {
    CUBE_POS_X % comptime!(slide.beside(tile)) * comptime!(tile.columns() as u32)
}

/// Returns a stage's row to which this unit copies.
#[cube]
pub(super) fn row_of_unit(#[comptime] i: usize, #[comptime] tile: Tile) -> u32 {
    UNIT_POS / comptime!(LANES as u32) * comptime!(AT_ONCE as u32)
        + UNIT_POS % comptime!(AT_ONCE as u32)
        + comptime!((i * AT_ONCE * tile.all_planes()) as u32)
}

/// Returns the vector of a row to which this unit copies.
#[cube]
pub(super) fn chunk_of_unit() -> u32 {
    UNIT_POS % comptime!(LANES as u32) / comptime!(AT_ONCE as u32)
}

/// The place of a vector of a row in a stage; rows are `pitch` apart.
#[cube]
fn in_stage(row: u32, chunk: u32, #[comptime] pitch: u32, #[comptime] tile: Tile) -> u32 {
    match comptime!(tile.instruction) {
        Instruction::Mma => row * pitch + chunk,
        Instruction::Wgmma => place(row, chunk),
    }
}

/// The factors of a step: a row per pixel, with the numbers under its window, and the weight.
#[derive(CubeType)]
struct UnderWindow {
    corners: Corners,
    window: Window,
    #[cube(comptime)]
    slide: Slide,
}

#[cube]
impl Feed for UnderWindow {
    fn begin<F: Float, V: Size>(
        &self,
        source: &[Vector<F, V>],
        weight: &[Vector<F, V>],
        stages: &mut [Vector<F, V>],
        step: u32,
        is_there: bool,
        to: u32,
        #[comptime] copy_number: usize,
        #[comptime] tile: Tile,
    ) {
        let [of_first, _] = comptime!(tile.copies());
        let slide = comptime!(self.slide);
        let vectors = comptime!(slide.depth / VECTOR as u32);
        let of_terms = comptime!(slide.terms() * vectors);
        let of_pixel = comptime!(slide.halves() * vectors);
        let in_window = self.window.rows * self.window.columns;
        // All places of the window before more channels, if a step does not divide them: the pixels
        // under neighbouring places are the same.
        let (at, vector) = if comptime!(slide.is_divided()) {
            let places = self.window.by_places;
            let chunk = step / places * comptime!(CHUNKS as u32) + chunk_of_unit();
            (step % places, chunk)
        } else {
            let chunk = step * comptime!(CHUNKS as u32) + chunk_of_unit();
            (chunk / of_terms, chunk % of_terms)
        };
        let (in_source, in_weight) = if comptime!(slide.split) {
            let (of_source, of_weight) = halves_of(vector / vectors, vectors);
            (vector % vectors + of_source, vector % vectors + of_weight)
        } else {
            (vector, vector)
        };
        let is_inside = is_there && at < in_window;
        let row = at / self.window.by_columns;
        let column = at % self.window.by_columns;

        let [height, width] = comptime!(slide.source);
        let (down, beside) = if comptime!(slide.back) {
            (0u32 - row, 0u32 - column)
        } else {
            (row, column)
        };
        let further = down * width + beside;
        if comptime!(copy_number < of_first) {
            let i = comptime!(copy_number);
            let is_seen = is_inside
                && self.corners.row[i] + down < height
                && self.corners.column[i] + beside < width;
            copy::<F, V>(
                source,
                (self.corners.pixel[i] + further) * of_pixel + in_source,
                stages,
                to + in_stage(
                    row_of_unit(i, tile),
                    chunk_of_unit(),
                    comptime!(tile.first_pitch()),
                    tile,
                ),
                is_seen,
                comptime!(slide.keep()),
            );
        } else {
            let i = comptime!(copy_number - of_first);
            let [down, beside] = comptime!(if slide.back { slide.stride } else { [1, 1] });
            let in_window = (self.window.first_row + row * down) * comptime!(slide.window[1])
                + self.window.first_column
                + column * beside;
            copy_weight::<F, V>(
                weight, stages, to, in_window, in_weight, is_inside, i, slide, tile,
            );
        }
    }
}

/// Begins one of a unit's copies of the weight to the stage at vector `to`: vector `vector` of its
/// channels at place `in_window` of the window.
#[cube]
fn copy_weight<F: Float, V: Size>(
    weight: &[Vector<F, V>],
    stages: &mut [Vector<F, V>],
    to: u32,
    in_window: u32,
    vector: u32,
    is_there: bool,
    #[comptime] copy_number: usize,
    #[comptime] slide: Slide,
    #[comptime] tile: Tile,
) {
    let row = row_of_unit(copy_number, tile);
    let feature = first_column(slide, tile) + column_of(row);
    let all = comptime!((copy_number + 1) * AT_ONCE * tile.all_planes() <= tile.columns());
    if all || row < comptime!(tile.columns() as u32) {
        copy::<F, V>(
            weight,
            feature * comptime!(slide.halves() * slide.under_window() / VECTOR as u32)
                + in_window * comptime!(slide.halves() * slide.depth / VECTOR as u32)
                + vector,
            stages,
            to + comptime!(tile.first_vectors())
                + in_stage(row, chunk_of_unit(), comptime!(tile.second_pitch()), tile),
            is_there && feature < comptime!(slide.features),
            comptime!(if tile.shares_columns() {
                Keep::Near
            } else {
                Keep::Far
            }),
        );
    }
}

/// Returns the pixel of a cube's row, and whether it belongs to the result.
#[cube]
fn pixel_of(row: u32, rows: u32, #[comptime] slide: Slide, #[comptime] tile: Tile) -> (u32, bool) {
    match comptime!(tile.halo) {
        Some(halo) => Corner::of_cube(halo, slide, tile).pixel(row, rows, halo, slide),
        None => pixel_of_grid(first_row(slide, tile) + row, rows, slide),
    }
}

/// The same for a row of the product.
#[cube]
fn pixel_of_grid(row: u32, rows: u32, #[comptime] slide: Slide) -> (u32, bool) {
    let [height, width] = comptime!(slide.result);
    if comptime!(slide.grids() > 1) {
        let [grid_height, grid_width] = comptime!(slide.grid());
        let [down, beside] = comptime!(slide.stride);
        let image = row / comptime!(grid_height * grid_width);
        let down = row / grid_width % grid_height * down + CUBE_POS_Z / beside;
        let column = row % grid_width * beside + CUBE_POS_Z % beside;
        let pixel = (image * height + down) * width + column;
        (pixel, row < rows && down < height && column < width)
    } else {
        (row, row < rows)
    }
}

#[cube]
fn write<F: Float, Q: Size>(
    sums: &Sums,
    bias: &[Vector<f32, Q>],
    plus: &[Vector<F, Q>],
    out: &mut [Vector<F, Q>],
    rows: u32,
    #[comptime] added: [bool; 2],
    #[comptime] slide: Slide,
    #[comptime] tile: Tile,
) {
    let (first, column) = row_and_column(tile);
    let column = first_column(slide, tile) + column + UNIT_POS % 4 * 4;
    #[unroll]
    for down in 0..comptime!(2 * tile.tiles[0]) {
        let (pixel, is_inside) = pixel_of(
            first + comptime!(row_of_pair(down, tile)),
            rows,
            slide,
            tile,
        );
        #[unroll]
        for two in 0..comptime!(tile.tiles[1] / 2) {
            let feature = column + comptime!((two * 16) as u32);
            if is_inside && feature < comptime!(slide.features) {
                let (instruction, half) = comptime!((down / 2, down % 2));
                let first = comptime!(instruction * tile.tiles[1] + 2 * two);
                let left = sums.pair(first, half);
                let right = sums.pair(comptime!(first + 1), half);
                let mut four = Vector::<f32, Q>::empty();
                four.insert(0usize, left.extract(0usize));
                four.insert(1usize, left.extract(1usize));
                four.insert(2usize, right.extract(0usize));
                four.insert(3usize, right.extract(1usize));
                if comptime!(added[0]) {
                    four += bias[(feature / 4) as usize];
                }
                let at = pixel * comptime!(slide.features / 4) + feature / 4;
                if comptime!(added[1]) {
                    four += Vector::<f32, Q>::cast_from(plus[at as usize]);
                }
                out[at as usize] = Vector::<F, Q>::cast_from(four);
            }
        }
    }
}
