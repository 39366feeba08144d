//! The gradient of a convolution's bias: the sum over all pixels, in f32 and in an order that depends on the
//! shape alone.

use burn_cubecl::tensor::CubeTensor;
use cubecl::prelude::*;

use super::super::matrix::{Matrix, arg};
use super::super::sums::{Division, FINISH_WIDTH, cube, end_of_part, over_parts, write_part};

/// Of the gradient of the result, \[batch, channels, height, width\]: \[channels\] in f32.
pub(super) fn gradient_of_bias(dy: CubeTensor) -> CubeTensor {
    let dy = Matrix::of_images(dy);
    let division = Division::new(dy.rows(), dy.row_vectors());
    let sums = dy.numbers([division.parts, 2, dy.columns()]);
    let out = dy.numbers([dy.columns()]);
    // SAFETY: a unit reads rows of its cube's part and a column that it has checked; a part's sums, and then
    // each column's, are written by the units that have checked their column.
    unsafe {
        sum_rows::launch_unchecked(
            dy.client(),
            division.cubes(),
            cube(),
            dy.address(),
            dy.vector(),
            dy.arg(),
            arg(&sums),
            dy.rows(),
            division.rows_of_part,
            division.columns,
            division.width,
            division.lanes,
            dy.elem(),
        );
        finish::launch_unchecked(
            dy.client(),
            division.finish_cubes(),
            cube(),
            AddressType::default(),
            dy.vector(),
            arg(&sums),
            arg(&out),
            division.parts,
            division.columns,
        );
    }
    out
}

#[cube(launch_unchecked, address_type = "dynamic")]
fn sum_rows<F: Float, N: Size>(
    dy: &[Vector<F, N>],
    sums: &mut [Vector<f32, N>],
    rows: usize,
    rows_of_part: usize,
    columns: usize,
    #[comptime] width: usize,
    #[comptime] lanes: usize,
    #[define(F)] _dtype: ElemType,
) {
    let unit = UNIT_POS as usize;
    let lane = unit / width;
    let column = CUBE_POS_Y as usize * width + unit % width;
    let mut sum = Vector::<f32, N>::new(0.0f32);
    if lane < lanes && column < columns {
        let mut row = CUBE_POS_X as usize * rows_of_part + lane;
        let end = end_of_part(rows_of_part, rows);
        while row < end {
            sum += Vector::<f32, N>::cast_from(dy[row * columns + column]);
            row += lanes;
        }
    }
    // There is nothing to be summed up beside it.
    write_part::<N>(sums, sum, sum, column, columns, width, lanes);
}

#[cube(launch_unchecked, address_type = "dynamic")]
fn finish<N: Size>(
    sums: &[Vector<f32, N>],
    out: &mut [Vector<f32, N>],
    parts: usize,
    columns: usize,
) {
    let unit = UNIT_POS as usize;
    let column = CUBE_POS_X as usize * FINISH_WIDTH + unit % FINISH_WIDTH;
    let sum = over_parts::<N>(sums, column, parts, columns, 0usize);
    if unit < FINISH_WIDTH && column < columns {
        out[column] = sum;
    }
}
