//! Sums over the rows of a matrix, two at once.
//!
//! They are computed in two steps. Every cube adds up some rows, in lanes side by side and then
//! over the lanes. One more kernel adds up the results of the cubes. The division of rows depends
//! on the shape alone, so every run gives the same bits.

use cubecl::prelude::*;

/// Units of a cube.
pub(super) const UNITS: usize = 256;

/// Columns side by side when parts are added up.
pub(super) const FINISH_WIDTH: usize = 8;

/// Parts that the second stage adds side by side.
const FINISH_LANES: usize = UNITS / FINISH_WIDTH;

/// Bits of each number of a row that a unit reads before it adds the first: four rows in f32; eight
/// rows in 16 bits, whose vectors have as many numbers.
const AHEAD: usize = 4 * 32;

/// Minimum rows that a lane adds up, if the matrix has as many.
const LANE_ROWS: usize = 16;

/// Maximum cubes that add up: some for every SM of a large GPU.
const CUBES: usize = 512;

/// Division of a matrix's rows for the sums.
#[derive(Clone, Copy, Debug)]
pub(super) struct Division {
    /// Vectors of a row.
    pub columns: usize,
    /// Vectors side by side in a cube.
    pub width: usize,
    /// Rows that a cube reads at once.
    pub lanes: usize,
    /// Number of parts, each in its own cubes.
    pub parts: usize,
    /// Rows of a part.
    pub rows_of_part: usize,
}

impl Division {
    /// Divides `rows` rows of `columns` vectors, at least one of each.
    pub fn new(rows: usize, columns: usize) -> Self {
        let width = columns.min(UNITS);
        let lanes = UNITS / width;
        let beside = columns.div_ceil(width);
        let most = (CUBES / beside).max(1);
        let parts = rows.div_ceil(lanes * LANE_ROWS).clamp(1, most);
        let rows_of_part = rows.div_ceil(parts);
        Self {
            columns,
            width,
            lanes,
            parts: rows.div_ceil(rows_of_part),
            rows_of_part,
        }
    }

    /// Returns the cubes of the first stage.
    pub fn cubes(&self) -> CubeCount {
        let beside = self.columns.div_ceil(self.width);
        CubeCount::Static(self.parts as u32, beside as u32, 1)
    }

    /// Returns the cubes of the second stage.
    pub fn finish_cubes(&self) -> CubeCount {
        CubeCount::Static(self.cubes_to_finish(), 1, 1)
    }

    /// Number of parts.
    pub fn cubes_to_finish(&self) -> u32 {
        self.columns.div_ceil(FINISH_WIDTH) as u32
    }
}

/// Returns the cube size of every kernel here.
pub(super) fn cube() -> CubeDim {
    CubeDim::new_1d(UNITS as u32)
}

/// The sum of the values of a cube's lanes, `width` units apart, in the first lane. Every unit of
/// the cube must come here.
#[cube]
pub(super) fn over_lanes<N: Size>(
    vector: Vector<f32, N>,
    lane: usize,
    #[comptime] width: usize,
    #[comptime] lanes: usize,
) -> Vector<f32, N> {
    let unit = UNIT_POS as usize;
    let mut vectors = Shared::<[Vector<f32, N>]>::new_slice(UNITS);
    vectors[unit] = vector;
    let steps = comptime!(lanes.next_power_of_two().trailing_zeros());
    sync_cube();
    #[unroll]
    for step in 0..steps {
        let stride = comptime!(1usize << (steps - 1 - step));
        if lane < stride && lane + stride < lanes {
            vectors[unit] = vectors[unit] + vectors[unit + stride * width];
        }
        sync_cube();
    }
    vectors[unit]
}

/// Two vectors.
#[derive(CubeType)]
pub(super) struct Two<F: Float, N: Size> {
    pub first: Vector<F, N>,
    pub second: Vector<F, N>,
}

#[cube]
impl<F: Float, N: Size> Two<F, N> {
    pub fn new(first: Vector<F, N>, second: Vector<F, N>) -> Self {
        Two::<F, N> { first, second }
    }
}

#[cube]
impl<N: Size> Two<f32, N> {
    pub fn zero() -> Self {
        Two::new(Vector::new(0.0f32), Vector::new(0.0f32))
    }

    fn add(&mut self, terms: Two<f32, N>) {
        self.first += terms.first;
        self.second += terms.second;
    }
}

/// The terms of sums over rows, in one column of vectors.
#[cube]
pub(super) trait Terms<F: Float, N: Size> {
    /// The values that are read of a row.
    fn read(&self, row: usize) -> Two<F, N>;

    /// The terms of these values.
    fn of(&self, read: &Two<F, N>, row: usize) -> Two<f32, N>;
}

/// Adds this lane's terms of this cube's rows.
#[cube]
pub(super) fn add_part<F: Float, N: Size, T: Terms<F, N> + CubeType>(
    sums: &mut Two<f32, N>,
    terms: &T,
    rows: usize,
    rows_of_part: usize,
    lane: usize,
    #[comptime] lanes: usize,
) {
    let begin = CUBE_POS_X as usize * rows_of_part;
    let end = select(begin + rows_of_part < rows, begin + rows_of_part, rows);
    add_rows::<F, N, T>(sums, terms, begin + lane, end, lanes);
}

/// Adds the terms of every `apart`th row from `row` on and before `end`, one after another. Several
/// are read before the first is added, because a unit waits for memory longer than it computes.
#[cube]
fn add_rows<F: Float, N: Size, T: Terms<F, N> + CubeType>(
    sums: &mut Two<f32, N>,
    terms: &T,
    row: usize,
    end: usize,
    #[comptime] apart: usize,
) {
    let mut row = row;
    let bits = F::size_bits().comptime();
    let ahead = comptime!(AHEAD / bits);
    while row + comptime!((ahead - 1) * apart) < end {
        let mut read = Sequence::<Two<F, N>>::new();
        #[unroll]
        for i in 0..ahead {
            read.push(terms.read(row + comptime!(i * apart)));
        }
        #[unroll]
        for i in 0..ahead {
            sums.add(terms.of(read.index(i), row + comptime!(i * apart)));
        }
        row += comptime!(ahead * apart);
    }
    while row < end {
        let read = terms.read(row);
        sums.add(terms.of(&read, row));
        row += apart;
    }
}

/// Writes the sums of a part, from its lanes, to \[part, 2, columns\]. Every unit of the cube must
/// call this.
#[cube]
pub(super) fn write_part<N: Size>(
    sums: &mut [Vector<f32, N>],
    of_lane: &Two<f32, N>,
    column: usize,
    columns: usize,
    #[comptime] width: usize,
    #[comptime] lanes: usize,
) {
    let lane = UNIT_POS as usize / width;
    let first = over_lanes::<N>(of_lane.first, lane, width, lanes);
    let second = over_lanes::<N>(of_lane.second, lane, width, lanes);
    if lane == 0 && column < columns {
        let row = 2 * CUBE_POS_X as usize;
        sums[row * columns + column] = first;
        sums[(row + 1) * columns + column] = second;
    }
}

/// The partial sums as terms of a sum.
#[derive(CubeType)]
struct OfParts<'a, N: Size> {
    sums: &'a [Vector<f32, N>],
    column: usize,
    columns: usize,
}

#[cube]
impl<'a, N: Size> Terms<f32, N> for OfParts<'a, N> {
    fn read(&self, part: usize) -> Two<f32, N> {
        let at = 2 * part * self.columns + self.column;
        Two::new(self.sums[at], self.sums[at + self.columns])
    }

    fn of(&self, read: &Two<f32, N>, _part: usize) -> Two<f32, N> {
        Two::new(read.first, read.second)
    }
}

/// Returns this lane's sums over the parts of a column in `sums`.
#[cube]
fn parts_of_lane<'a, N: Size>(
    sums: &'a [Vector<f32, N>],
    column: usize,
    parts: usize,
    columns: usize,
) -> Two<f32, N> {
    let mut of_lane = Two::<f32, N>::zero();
    if column < columns {
        let terms = OfParts::<'a, N> {
            sums,
            column,
            columns,
        };
        let lane = UNIT_POS as usize / FINISH_WIDTH;
        add_rows::<f32, N, OfParts<N>>(&mut of_lane, &terms, lane, parts, FINISH_LANES);
    }
    of_lane
}

/// Returns the sums over the parts of a column in `sums`, in the first lane. Every unit of the cube
/// must call this.
#[cube]
pub(super) fn over_parts<N: Size>(
    sums: &[Vector<f32, N>],
    column: usize,
    parts: usize,
    columns: usize,
) -> Two<f32, N> {
    let lane = UNIT_POS as usize / FINISH_WIDTH;
    let of_lane = parts_of_lane::<N>(sums, column, parts, columns);
    let first = over_lanes::<N>(of_lane.first, lane, FINISH_WIDTH, FINISH_LANES);
    let second = over_lanes::<N>(of_lane.second, lane, FINISH_WIDTH, FINISH_LANES);
    Two::new(first, second)
}

/// Returns only the first sum of [`over_parts`].
#[cube]
pub(super) fn first_over_parts<N: Size>(
    sums: &[Vector<f32, N>],
    column: usize,
    parts: usize,
    columns: usize,
) -> Vector<f32, N> {
    let lane = UNIT_POS as usize / FINISH_WIDTH;
    let of_lane = parts_of_lane::<N>(sums, column, parts, columns);
    over_lanes::<N>(of_lane.first, lane, FINISH_WIDTH, FINISH_LANES)
}
