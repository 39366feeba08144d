//! The norm of what lies on a GPU, in an order that depends on the length alone: where a device can add
//! atomically, Burn's sum adds up in whatever order its cubes come.

use burn::backend::Cube;
use burn::tensor::Tensor;
use cubecl::prelude::*;

use super::matrix::{Matrix, arg, primitive};
use super::sums::{UNITS, cube, over_lanes};

/// Numbers that a cube adds up.
const PART: usize = 256 * UNITS;

/// Sums of the squares of `values`, one for each 65,536 of them, which are still to be added up: in `f64`,
/// so that no number of them costs precision.
///
/// # Panics
/// If `values` are not `f32`, or not on a device that [`super::computes_on`].
pub fn sums_of_squares(values: Tensor<1>) -> Tensor<1> {
    let values = Matrix::new(primitive(values));
    assert!(values.is_f32());
    let count = values.columns();
    let parts = count.div_ceil(PART).max(1);
    let sums = values.numbers([parts]);
    // SAFETY: every cube reads a part of `values` of its own, which ends where they end, and writes one
    // of as many sums as there are cubes.
    unsafe {
        squares_of_part::launch_unchecked(
            values.client(),
            CubeCount::Static(parts as u32, 1, 1),
            cube(),
            values.address(),
            // Vectors would put numbers of other places into one sum, if a length allows them.
            1,
            values.arg(),
            arg(&sums),
            count,
        );
    }
    Tensor::from_primitive::<Cube>(sums)
}

#[cube(launch_unchecked, address_type = "dynamic")]
fn squares_of_part<N: Size>(values: &[Vector<f32, N>], sums: &mut [Vector<f32, N>], count: usize) {
    let unit = UNIT_POS as usize;
    let begin = CUBE_POS_X as usize * comptime!(PART);
    let end = select(begin + PART < count, begin + PART, count);
    let mut sum = Vector::<f32, N>::new(0.0f32);
    let mut at = begin + unit;
    while at < end {
        let value = values[at];
        sum = fma(value, value, sum);
        at += UNITS;
    }
    let sum = over_lanes::<N>(sum, unit, 1usize, UNITS);
    if unit == 0 {
        sums[CUBE_POS_X as usize] = sum;
    }
}
