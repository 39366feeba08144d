//! The convolution whose source stays in shared memory for all places of its window. A cube
//! computes squares of 8 × 8 pixels. It copies their pixels and the pixels around them once, 32
//! channels at a time. A place of the window is then the same rows of the product, moved by a few
//! pixels.
//!
//! Otherwise an SM reads and writes its copies nine times, which takes its shared memory longer
//! than tensor cores compute, as measured. Eight adjacent pixels are the rows of a matrix that
//! `wgmma` reads at once. They may begin at any pixel, as long as nothing is swizzled ("Shared
//! Memory Matrix Layout" of the PTX ISA).

use cubecl::prelude::*;

use super::super::tensor_cores::{Keep, Sums, VECTOR, VECTOR_BYTES, commit, copy, wait};
use super::super::warpgroup::{
    Major, begin_products, commit_products, descriptor, group, show_to_products, sums,
    wait_for_products, zero_sums,
};
use super::arrange::{column_of, rows_in_planes};
use super::product::stage_of;
use super::shape::Slide;
use super::slide::{chunk_of_unit, first_column, row_of_unit};
use super::tile::{Instruction, STAGE_DEPTH, Tile};
use super::warpgroups::{ALIGN, multiply_blocks};

/// Pixels of a side of a square: adjacent rows of a matrix.
const SIDE: u32 = 8;

/// Rows of the product in a square: the rows of an instruction.
const SQUARE: u32 = SIDE * SIDE;

/// Vectors of a pixel that are copied at once.
const CHUNKS: u32 = (STAGE_DEPTH / VECTOR) as u32;

/// Sources in shared memory: one is computed with while the next arrives.
const BUFFERS: u32 = 2;

/// Minimum and maximum stages for the weight. One is computed with, one may still be. The others
/// arrive, which takes longer than a step from the second-level cache.
const STAGES: [usize; 2] = [4, 7];

/// A unit's copies of the source per step.
const COPIES: u32 = 2;

/// The only supported window, and the pixels that it adds around a square on each side.
const WINDOW: [u32; 2] = [3, 3];
const AROUND: u32 = 1;
const PLACES: u32 = WINDOW[0] * WINDOW[1];

/// The squares of a cube.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Halo {
    /// Down and across.
    pub squares: [u32; 2],
    /// The number of images with these squares.
    pub images: u32,
}

impl Halo {
    /// Squares for the rows of `tile`, or `None` if the convolution cannot be computed this way.
    /// Chooses the squares with the fewest cubes, then with the fewest copied pixels.
    pub fn of(tile: &Tile, slide: Slide, batch: u32) -> Option<Self> {
        let fits = matches!(tile.instruction, Instruction::Wgmma)
            && slide.is_divided()
            && !slide.split
            && slide.window == WINDOW
            && slide.stride == [1; 2]
            && slide.padding == [AROUND; 2];
        if !fits {
            return None;
        }
        let squares = tile.rows() as u32 / SQUARE;
        let powers = || (0..=squares.ilog2()).map(|power| 1 << power);
        let all = powers().flat_map(|down| powers().map(move |beside| [down, beside]));
        let halos = all
            .filter(|[down, beside]| squares.is_multiple_of(down * beside))
            .map(|[down, beside]| Self {
                squares: [down, beside],
                images: squares / (down * beside),
            });
        halos.min_by_key(|halo| (halo.cubes(slide, batch), halo.pixels()))
    }

    /// Returns the number of cubes for all pixels.
    pub fn cubes(&self, slide: Slide, batch: u32) -> u32 {
        batch.div_ceil(self.images) * self.below(slide) * self.beside(slide)
    }

    /// Cubes in a column of an image.
    const fn below(&self, slide: Slide) -> u32 {
        slide.result[0].div_ceil(self.squares[0] * SIDE)
    }

    /// Cubes in a row of an image.
    const fn beside(&self, slide: Slide) -> u32 {
        slide.result[1].div_ceil(self.squares[1] * SIDE)
    }

    /// Copied pixels in a column.
    const fn height(&self) -> u32 {
        self.squares[0] * SIDE + 2 * AROUND
    }

    /// Copied pixels in a row.
    const fn width(&self) -> u32 {
        self.squares[1] * SIDE + 2 * AROUND
    }

    /// Copied pixels.
    pub const fn pixels(&self) -> u32 {
        self.images * self.height() * self.width()
    }

    /// Vectors from one part of the channels to the next. The number puts the vectors of two
    /// neighbouring pixels into different banks.
    const fn plane(&self) -> u32 {
        (self.pixels() + 5) / 8 * 8 + 2
    }

    /// Returns the vectors of a source.
    const fn vectors(&self) -> u32 {
        CHUNKS * self.plane()
    }

    /// Returns the vectors of all sources.
    pub const fn all_vectors(&self) -> u32 {
        BUFFERS * self.vectors()
    }

    /// Returns the smallest shared memory of a cube in bytes.
    pub const fn least_bytes(&self, tile: &Tile) -> usize {
        let of_stages = STAGES[0] * tile.stage_vectors() as usize;
        (self.all_vectors() as usize + of_stages) * VECTOR_BYTES
    }

    /// Returns the copied pixels per place of the window.
    pub fn pixels_of_place(&self) -> f64 {
        f64::from(self.pixels()) / f64::from(PLACES)
    }

    /// The layout of pixels.
    const fn major(&self) -> Major {
        Major::Planes {
            plane: self.plane(),
            eights: self.width(),
        }
    }
}

impl Tile {
    /// The same with a source that stays, and with as many stages as fit if the cubes of an SM
    /// share `memory` bytes of shared memory.
    pub fn with_halo(self, halo: Halo, memory: usize) -> Self {
        let [least, most] = STAGES;
        let tile = Self {
            halo: Some(halo),
            stages: 1,
            ..self
        };
        let stage = tile.stage_vectors() as usize * VECTOR_BYTES;
        let for_stages = (memory / tile.at_once() as usize).saturating_sub(tile.bytes() - stage);
        Self {
            stages: (for_stages / stage).clamp(least, most),
            ..tile
        }
    }

    /// Returns the number of steps whose copies have begun.
    const fn ahead(&self) -> usize {
        self.stages - 2
    }
}

/// The first pixel of a cube.
#[derive(CubeType)]
pub(super) struct Corner {
    image: u32,
    row: u32,
    column: u32,
}

#[cube]
impl Corner {
    pub fn of_cube(
        #[comptime] halo: Halo,
        #[comptime] slide: Slide,
        #[comptime] tile: Tile,
    ) -> Self {
        let cube = CUBE_POS_X / comptime!(slide.beside(tile));
        let below = comptime!(halo.below(slide));
        let beside = comptime!(halo.beside(slide));
        Corner {
            image: cube / comptime!(below * beside) * comptime!(halo.images),
            row: cube / beside % below * comptime!(halo.squares[0] * SIDE),
            column: cube % beside * comptime!(halo.squares[1] * SIDE),
        }
    }

    /// Returns the pixel of a row of the product, and whether it is one of `pixels`.
    pub fn pixel(
        &self,
        row: u32,
        pixels: u32,
        #[comptime] halo: Halo,
        #[comptime] slide: Slide,
    ) -> (u32, bool) {
        let [height, width] = comptime!(slide.result);
        let (image, down, beside) = square(row / SQUARE, halo);
        let row_of_image = self.row + down * SIDE + row / SIDE % SIDE;
        let column = self.column + beside * SIDE + row % SIDE;
        let pixel = ((self.image + image) * height + row_of_image) * width + column;
        let is_inside = row_of_image < height && column < width && pixel < pixels;
        (pixel, is_inside)
    }
}

/// The place of a square: its image, and the numbers of squares above it and left of it.
#[cube]
fn square(number: u32, #[comptime] halo: Halo) -> (u32, u32, u32) {
    let [down, beside] = comptime!(halo.squares);
    (
        number / comptime!(down * beside),
        number / beside % down,
        number % beside,
    )
}

/// The product of all pixels of a cube with the weight; all images together have `pixels`.
#[cube]
pub(super) fn product<F: Float, V: Size>(
    source: &[Vector<F, V>],
    weight: &[Vector<F, V>],
    pixels: u32,
    #[comptime] halo: Halo,
    #[comptime] slide: Slide,
    #[comptime] tile: Tile,
) -> Sums {
    let of_stages = comptime!(tile.stages as u32 * tile.stage_vectors());
    let mut memory = Shared::<[Vector<F, V>]>::new_aligned_slice(
        comptime!((of_stages + halo.all_vectors()) as usize),
        ALIGN,
    );
    let corner = Corner::of_cube(halo, slide, tile);
    let parts = comptime!(slide.depth / STAGE_DEPTH as u32);
    let steps = comptime!(parts * PLACES);
    let eights = comptime!(tile.tiles[0] * tile.tiles[1]);
    zero_sums(comptime!(4 * eights));
    let columns = descriptor::<F, V>(&memory, comptime!(of_weight(tile)));
    let rows = descriptor::<F, V>(&memory, comptime!(halo.major())) + of_stages;
    let mut squares = Array::<u32>::new(comptime!(tile.tiles[0]));
    #[unroll]
    for block in 0..comptime!(tile.tiles[0]) {
        let number = group() * comptime!(tile.tiles[0] as u32) + comptime!(block as u32);
        squares[block] = rows + first_of_square(number, halo);
    }

    #[unroll]
    for slot in 0..comptime!(slots(tile, halo)) {
        copy_source::<F, V>(
            source,
            &mut memory,
            0u32,
            slot.runtime(),
            pixels,
            &corner,
            halo,
            slide,
            tile,
        );
    }
    #[unroll]
    for step in 0..comptime!(tile.ahead() as u32) {
        copy_weights::<F, V>(weight, &mut memory, step.runtime(), steps, slide, tile);
        commit();
    }
    wait(comptime!(tile.ahead() - 1));
    show_to_products();
    for step in 0..steps {
        let (part, place) = (step / PLACES, step % PLACES);
        // The data of this step has arrived, and all units have waited for the product whose stage
        // is filled below.
        sync_cube();
        begin_products();
        let further = part % BUFFERS * comptime!(halo.vectors()) + moved(place, halo, slide);
        let mut rows = Array::<u32>::new(comptime!(tile.tiles[0]));
        #[unroll]
        for block in 0..comptime!(tile.tiles[0]) {
            rows[block] = squares[block] + further;
        }
        multiply_blocks::<F>(
            &rows,
            columns + stage_of(step, tile),
            comptime!([halo.major(), of_weight(tile)]),
            tile,
        );
        commit_products();
        // Shows the data of the next step before more is copied, because it might wait for that.
        wait(comptime!(tile.ahead() - 2));
        show_to_products();
        copy_weights::<F, V>(
            weight,
            &mut memory,
            step + comptime!(tile.ahead() as u32),
            steps,
            slide,
            tile,
        );
        // The product before the first place may still read the target. So the first place has no
        // slot, and neither does the end.
        let slot = place - 1;
        if part + 1 < parts {
            copy_source::<F, V>(
                source,
                &mut memory,
                part + 1,
                slot,
                pixels,
                &corner,
                halo,
                slide,
                tile,
            );
        }
        commit();
        wait_for_products(1usize);
    }
    wait_for_products(0usize);
    sums(eights)
}

/// Returns the number of steps in which a source is copied.
fn slots(tile: Tile, halo: Halo) -> u32 {
    let slots = halo.pixels().div_ceil(COPIES * pixels_at_once(tile));
    // All have arrived before the first place of the next source is shown.
    assert!(slots + tile.ahead() as u32 <= PLACES, "{tile:?}");
    slots
}

/// Pixels for which all units together copy one vector each.
const fn pixels_at_once(tile: Tile) -> u32 {
    tile.units() as u32 / CHUNKS
}

/// Returns the first vector of a square in a source, for the window's first place.
#[cube]
fn first_of_square(number: u32, #[comptime] halo: Halo) -> u32 {
    let (image, down, beside) = square(number, halo);
    (image * comptime!(halo.height()) + down * SIDE) * comptime!(halo.width()) + beside * SIDE
}

/// Vectors to the pixels under a place of the window.
#[cube]
fn moved(place: u32, #[comptime] halo: Halo, #[comptime] slide: Slide) -> u32 {
    // A gradient slides in the opposite direction.
    let place = if comptime!(slide.back) {
        comptime!(PLACES - 1) - place
    } else {
        place
    };
    let columns = comptime!(WINDOW[1]);
    place / columns * comptime!(halo.width()) + place % columns
}

/// Begins the copies of a unit in one slot: of the channels of part `part` to its own place in
/// shared memory. A slot that does not exist has no copies.
#[cube]
fn copy_source<F: Float, V: Size>(
    source: &[Vector<F, V>],
    memory: &mut [Vector<F, V>],
    part: u32,
    slot: u32,
    pixels: u32,
    corner: &Corner,
    #[comptime] halo: Halo,
    #[comptime] slide: Slide,
    #[comptime] tile: Tile,
) {
    let first = slot * comptime!(COPIES * pixels_at_once(tile)) + row_of_unit(0usize, tile);
    #[unroll]
    for i in 0..COPIES {
        let at = first + comptime!(i * pixels_at_once(tile));
        if at < comptime!(halo.pixels()) {
            let [height, width] = comptime!(slide.source);
            let (rows, columns) = comptime!((halo.height(), halo.width()));
            // These are very large above and left of an image.
            let row = corner.row + at / columns % rows - AROUND;
            let column = corner.column + at % columns - AROUND;
            let image = corner.image + at / comptime!(rows * columns);
            let pixel = (image * height + row) * width + column;
            let of_stages = comptime!(tile.stages as u32 * tile.stage_vectors());
            copy::<F, V>(
                source,
                pixel * comptime!(slide.depth / VECTOR as u32) + part * CHUNKS + chunk_of_unit(),
                memory,
                of_stages
                    + part % BUFFERS * comptime!(halo.vectors())
                    + chunk_of_unit() * comptime!(halo.plane())
                    + at,
                row < height && column < width && image * comptime!(height * width) < pixels,
                Keep::Far,
            );
        }
    }
}

/// The layout of a stage of the weight: as in global memory.
const fn of_weight(tile: Tile) -> Major {
    Major::Planes {
        plane: tile.columns() as u32,
        eights: SIDE,
    }
}

/// Begins a unit's copies of the weight for a step, or of zeros for a step that does not exist.
#[cube]
fn copy_weights<F: Float, V: Size>(
    weight: &[Vector<F, V>],
    memory: &mut [Vector<F, V>],
    step: u32,
    steps: u32,
    #[comptime] slide: Slide,
    #[comptime] tile: Tile,
) {
    let [_, copies] = comptime!(tile.copies());
    let plane = step % PLACES * comptime!(slide.depth / VECTOR as u32) + step / PLACES * CHUNKS;
    #[unroll]
    for i in 0..copies {
        let at = UNIT_POS + comptime!((i * tile.units()) as u32);
        let all = comptime!((i + 1) * tile.units() <= tile.stage_vectors() as usize);
        if all || at < comptime!(tile.stage_vectors()) {
            let columns = comptime!(tile.columns() as u32);
            let (chunk, row) = (at / columns, first_column(slide, tile) + at % columns);
            copy::<F, V>(
                weight,
                (plane + chunk) * comptime!(rows_in_planes(slide.features)) + row,
                memory,
                stage_of(step, tile) + at,
                step < steps && column_of(row) < comptime!(slide.features),
                Keep::Far,
            );
        }
    }
}
