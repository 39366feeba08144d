//! Sums over the rows of a matrix, two at once.
//!
//! They are taken in two parts: every cube adds up some rows, in lanes side by side and then over the
//! lanes, and one more kernel adds up what the cubes have. How rows are divided depends on the
//! shape alone, so a result is the same bits on every run.

use cubecl::prelude::*;

/// Units of a cube.
pub(super) const UNITS: usize = 256;

/// Columns side by side where parts are added up.
pub(super) const FINISH_WIDTH: usize = 8;

/// Rows that a lane adds up at least, if there are so many.
const LANE_ROWS: usize = 16;

/// Cubes that add up, at most: some for every processor of a large GPU.
const CUBES: usize = 512;

/// How the rows of a matrix are added up.
#[derive(Clone, Copy, Debug)]
pub(super) struct Division {
    /// Vectors of a row.
    pub columns: usize,
    /// Vectors side by side in a cube.
    pub width: usize,
    /// Rows that a cube reads at once.
    pub lanes: usize,
    /// Cubes above one another.
    pub parts: usize,
    /// The rows of each of them.
    pub rows_of_part: usize,
}

impl Division {
    /// Of `rows` rows of `columns` vectors, at least one of each.
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

    /// The cubes that add up rows.
    pub fn cubes(&self) -> CubeCount {
        let beside = self.columns.div_ceil(self.width);
        CubeCount::Static(self.parts as u32, beside as u32, 1)
    }

    /// The cubes that add up parts.
    pub fn finish_cubes(&self) -> CubeCount {
        CubeCount::Static(self.cubes_to_finish(), 1, 1)
    }

    /// How many these are.
    pub fn cubes_to_finish(&self) -> u32 {
        self.columns.div_ceil(FINISH_WIDTH) as u32
    }
}

/// The cube of every kernel here.
pub(super) fn cube() -> CubeDim {
    CubeDim::new_1d(UNITS as u32)
}

/// The sum of what the lanes of a cube have, `width` units apart, in the first lane. Every unit of the
/// cube must come here.
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

/// The rows of this cube's part end before it.
#[cube]
pub(super) fn end_of_part(rows_of_part: usize, rows: usize) -> usize {
    let end = (CUBE_POS_X as usize + 1) * rows_of_part;
    select(end < rows, end, rows)
}

/// Writes the sums of a part, which its lanes have, to \[part, 2, columns\]. Every unit of the cube must
/// come here.
#[cube]
pub(super) fn write_part<N: Size>(
    sums: &mut [Vector<f32, N>],
    first: Vector<f32, N>,
    second: Vector<f32, N>,
    column: usize,
    columns: usize,
    #[comptime] width: usize,
    #[comptime] lanes: usize,
) {
    let lane = UNIT_POS as usize / width;
    let first = over_lanes::<N>(first, lane, width, lanes);
    let second = over_lanes::<N>(second, lane, width, lanes);
    if lane == 0 && column < columns {
        let row = 2 * CUBE_POS_X as usize;
        sums[row * columns + column] = first;
        sums[(row + 1) * columns + column] = second;
    }
}

/// The sum over the parts of a column in `sums`, the first or the second, in the first lane. Every unit
/// of the cube must come here.
#[cube]
pub(super) fn over_parts<N: Size>(
    sums: &[Vector<f32, N>],
    column: usize,
    parts: usize,
    columns: usize,
    #[comptime] which: usize,
) -> Vector<f32, N> {
    let lanes = comptime!(UNITS / FINISH_WIDTH);
    let lane = UNIT_POS as usize / FINISH_WIDTH;
    let mut sum = Vector::<f32, N>::new(0.0f32);
    if column < columns {
        let mut part = lane;
        while part < parts {
            sum += sums[(2 * part + which) * columns + column];
            part += lanes;
        }
    }
    over_lanes::<N>(sum, lane, FINISH_WIDTH, lanes)
}
