//! Sums within the rows of a matrix: some units of a cube share each row.

use cubecl::prelude::*;

use super::matrix::Matrix;
use super::sums::UNITS;

/// Units that share a row, at most: those of a plane of most devices.
const ROW_UNITS: usize = 32;

/// Units that share a row.
pub(super) fn width(x: &Matrix) -> usize {
    x.row_vectors().next_power_of_two().min(ROW_UNITS)
}

/// The cubes for all rows, in a grid whose sides no device finds too long.
pub(super) fn cubes(x: &Matrix) -> CubeCount {
    let cubes = x.rows().div_ceil(UNITS / width(x));
    let side = cubes.min(1 << 15);
    CubeCount::Static(side as u32, cubes.div_ceil(side) as u32, 1)
}

/// The sum of a vector's numbers.
#[cube]
pub(super) fn across<N: Size>(vector: Vector<f32, N>) -> f32 {
    let mut sum = vector.extract(0usize);
    #[unroll]
    for index in 1usize..N::value() {
        sum += vector.extract(index);
    }
    sum
}

/// Adds up the units of each row; the sum is that of its first unit.
#[cube]
pub(super) fn add_units(numbers: &mut Shared<[f32]>, place: usize, #[comptime] width: usize) {
    let unit = UNIT_POS as usize;
    let steps = comptime!(width.trailing_zeros());
    sync_cube();
    #[unroll]
    for step in 0..steps {
        let stride = comptime!(1usize << (steps - 1 - step));
        if place < stride {
            numbers[unit] += numbers[unit + stride];
        }
        sync_cube();
    }
}

/// The row of this unit.
#[cube]
pub(super) fn row_of_unit(#[comptime] width: usize) -> usize {
    let cube = CUBE_POS_Y as usize * CUBE_COUNT_X as usize + CUBE_POS_X as usize;
    cube * comptime!(UNITS / width) + UNIT_POS as usize / width
}

/// The largest of a vector's numbers.
#[cube]
pub(super) fn most_across<N: Size>(vector: Vector<f32, N>) -> f32 {
    let mut most = vector.extract(0usize);
    #[unroll]
    for index in 1usize..N::value() {
        most = most.max(vector.extract(index));
    }
    most
}

/// Finds the largest of the units of each row; it is that of its first unit.
#[cube]
pub(super) fn most_of_units(numbers: &mut Shared<[f32]>, place: usize, #[comptime] width: usize) {
    let unit = UNIT_POS as usize;
    let steps = comptime!(width.trailing_zeros());
    sync_cube();
    #[unroll]
    for step in 0..steps {
        let stride = comptime!(1usize << (steps - 1 - step));
        if place < stride {
            numbers[unit] = numbers[unit].max(numbers[unit + stride]);
        }
        sync_cube();
    }
}
