//! Sums within the rows of a matrix. Some units of a cube share each row.

use cubecl::prelude::*;

use super::matrix::Matrix;
use super::sums::UNITS;

/// Maximum units that share a row: a plane of most devices.
const ROW_UNITS: usize = 32;

/// Returns the number of units that share a row.
pub(super) fn width(x: &Matrix) -> usize {
    x.row_vectors().next_power_of_two().min(ROW_UNITS)
}

/// The cubes for all rows, in a grid within the limits of every device.
pub(super) fn cubes(x: &Matrix) -> CubeCount {
    let cubes = x.rows().div_ceil(UNITS / width(x));
    let side = cubes.min(1 << 15);
    CubeCount::Static(side as u32, cubes.div_ceil(side) as u32, 1)
}

/// Returns the row of this unit.
#[cube]
pub(super) fn row_of_unit(#[comptime] width: usize) -> usize {
    let cube = CUBE_POS_Y as usize * CUBE_COUNT_X as usize + CUBE_POS_X as usize;
    cube * comptime!(UNITS / width) + UNIT_POS as usize / width
}

/// The sum over a row of its units' vectors.
#[cube]
pub(super) fn row_sum<N: Size>(vector: Vector<f32, N>, #[comptime] width: usize) -> f32 {
    let mut sum = vector.extract(0usize);
    #[unroll]
    for index in 1usize..N::value() {
        sum += vector.extract(index);
    }
    over_units(sum, width, false)
}

/// The largest number of a row of `x`; arbitrary behind the last row. Every unit of the cube must
/// come here.
#[cube]
pub(super) fn row_largest<F: Float, N: Size>(
    x: &[Vector<F, N>],
    row: usize,
    rows: usize,
    columns: usize,
    #[comptime] width: usize,
) -> f32 {
    let mut vector = Vector::<f32, N>::new(0.0f32);
    if row < rows {
        let start = row * columns;
        vector = Vector::<f32, N>::cast_from(x[start]);
        let mut column = UNIT_POS as usize % width;
        while column < columns {
            vector = vector.max(Vector::<f32, N>::cast_from(x[start + column]));
            column += width;
        }
    }
    let mut most = vector.extract(0usize);
    #[unroll]
    for index in 1usize..N::value() {
        most = most.max(vector.extract(index));
    }
    over_units(most, width, true)
}

/// The sum, or else the maximum, of the values of the units of this unit's row. Every unit of the
/// cube must come here.
#[cube]
fn over_units(number: f32, #[comptime] width: usize, #[comptime] most: bool) -> f32 {
    let unit = UNIT_POS as usize;
    let place = unit % width;
    let mut numbers = Shared::<[f32]>::new_slice(UNITS);
    numbers[unit] = number;
    let steps = comptime!(width.trailing_zeros());
    sync_cube();
    #[unroll]
    for step in 0..steps {
        let stride = comptime!(1usize << (steps - 1 - step));
        if place < stride {
            let other = numbers[unit + stride];
            if comptime!(most) {
                numbers[unit] = numbers[unit].max(other);
            } else {
                numbers[unit] += other;
            }
        }
        sync_cube();
    }
    numbers[unit - place]
}
