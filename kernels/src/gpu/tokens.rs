//! GPU kernels of layer normalization, on matrices of a row per token and a column per feature.
//!
//! Some units of one cube normalize a row. They read it once for its sums and, from the cache, once
//! more for the result. The sums are of differences from the row's first value, so they do not
//! cancel if a mean is large compared with its deviation.

use burn_cubecl::tensor::CubeTensor;
use cubecl::prelude::*;

use super::matrix::{Matrix, arg};
use super::rows::{cubes, row_of_unit, row_sum, width};
use super::sums::{
    Division, FINISH_WIDTH, Terms, TermsExpand, Two, add_part, cube, over_parts, write_part,
};

/// The normalized rows, and mean and inverse deviation of each: \[rows, 2\].
pub(super) fn normalise(
    x: &Matrix,
    [weight, bias]: [&CubeTensor; 2],
    epsilon: f32,
) -> (Matrix, CubeTensor) {
    let (out, moments) = (x.empty_like(), x.numbers([x.rows(), 2]));
    // SAFETY: the cubes cover all rows, the units of a row all of its vectors; the parameters have
    // a number for each column.
    unsafe {
        normalise_rows::launch_unchecked(
            x.client(),
            cubes(x),
            cube(),
            x.address(),
            x.vector(),
            x.arg(),
            arg(weight),
            arg(bias),
            out.arg(),
            arg(&moments),
            x.rows(),
            x.row_vectors(),
            epsilon,
            width(x),
            x.elem(),
        );
    }
    (out, moments)
}

/// Computes the gradient of the input, plus `plus`.
pub(super) fn input_gradient(
    x: &Matrix,
    dy: &Matrix,
    weight: &CubeTensor,
    moments: &CubeTensor,
    plus: Option<&Matrix>,
) -> Matrix {
    let out = x.empty_like();
    // SAFETY: as in `normalise`; `dy` and `plus` are as large as `x`, and `moments` has all rows.
    unsafe {
        back_rows::launch_unchecked(
            x.client(),
            cubes(x),
            cube(),
            x.address(),
            x.vector(),
            x.arg(),
            dy.arg(),
            arg(weight),
            arg(moments),
            // The kernel needs an argument, even an unused one.
            plus.unwrap_or(dy).arg(),
            out.arg(),
            x.rows(),
            x.row_vectors(),
            plus.is_some(),
            width(x),
            x.elem(),
        );
    }
    out
}

/// Computes the gradients of weight and bias, \[features\] each.
pub(super) fn parameter_gradients(
    x: &Matrix,
    dy: &Matrix,
    moments: &CubeTensor,
) -> [CubeTensor; 2] {
    let division = Division::new(x.rows(), x.row_vectors());
    let sums = x.numbers([division.parts, 2, x.columns()]);
    let [weight, bias] = [(); 2].map(|()| x.numbers([x.columns()]));
    // SAFETY: the division covers the rows and columns of `x` and `dy`, `sums` has room for all
    // parts, and `moments` has all rows.
    unsafe {
        sum_gradients::launch_unchecked(
            x.client(),
            division.cubes(),
            cube(),
            x.address(),
            x.vector(),
            x.arg(),
            dy.arg(),
            arg(moments),
            arg(&sums),
            x.rows(),
            division.rows_of_part,
            division.columns,
            division.width,
            division.lanes,
            x.elem(),
        );
    }
    // SAFETY: all have a number for each column, and `sums` has the given number of parts.
    unsafe {
        finish_gradients::launch_unchecked(
            x.client(),
            division.finish_cubes(),
            cube(),
            AddressType::default(),
            x.vector(),
            arg(&sums),
            arg(&weight),
            arg(&bias),
            division.parts,
            division.columns,
        );
    }
    [weight, bias]
}

#[cube(launch_unchecked, address_type = "dynamic")]
fn normalise_rows<F: Float, N: Size>(
    x: &[Vector<F, N>],
    weight: &[Vector<f32, N>],
    bias: &[Vector<f32, N>],
    out: &mut [Vector<F, N>],
    moments: &mut [f32],
    rows: usize,
    columns: usize,
    epsilon: f32,
    #[comptime] width: usize,
    #[define(F)] _dtype: ElemType,
) {
    let row = row_of_unit(width);
    let place = UNIT_POS as usize % width;
    let start = row * columns;
    let mut sum = Vector::<f32, N>::new(0.0f32);
    let mut squares = Vector::<f32, N>::new(0.0f32);
    let mut base = 0.0f32;
    if row < rows {
        base = f32::cast_from(x[start].extract(0usize));
        let mut column = place;
        while column < columns {
            let value = Vector::<f32, N>::cast_from(x[start + column]) - Vector::new(base);
            sum += value;
            squares += value * value;
            column += width;
        }
    }
    let sum = row_sum::<N>(sum, width);
    let squares = row_sum::<N>(squares, width);
    if row < rows {
        let count = f32::cast_from(columns * N::value());
        let mean = sum / count;
        let variance = squares / count - mean * mean;
        // Rounding may take it below; NaN stays NaN.
        let variance = select(variance < 0.0f32, 0.0f32, variance);
        let inverse = 1.0f32 / (variance + epsilon).sqrt();
        let mean = mean + base;
        if place == 0 {
            moments[2 * row] = mean;
            moments[2 * row + 1] = inverse;
        }
        let mut column = place;
        while column < columns {
            let value = Vector::<f32, N>::cast_from(x[start + column]) - Vector::new(mean);
            let value = value * Vector::new(inverse) * weight[column] + bias[column];
            out[start + column] = Vector::<F, N>::cast_from(value);
            column += width;
        }
    }
}

#[cube(launch_unchecked, address_type = "dynamic")]
fn back_rows<F: Float, N: Size>(
    x: &[Vector<F, N>],
    dy: &[Vector<F, N>],
    weight: &[Vector<f32, N>],
    moments: &[f32],
    plus: &[Vector<F, N>],
    out: &mut [Vector<F, N>],
    rows: usize,
    columns: usize,
    #[comptime] has_plus: bool,
    #[comptime] width: usize,
    #[define(F)] _dtype: ElemType,
) {
    let row = row_of_unit(width);
    let place = UNIT_POS as usize % width;
    let start = row * columns;
    let mut sum = Vector::<f32, N>::new(0.0f32);
    let mut products = Vector::<f32, N>::new(0.0f32);
    let mut mean = Vector::<f32, N>::new(0.0f32);
    let mut inverse = Vector::<f32, N>::new(0.0f32);
    if row < rows {
        mean = Vector::new(moments[2 * row]);
        inverse = Vector::new(moments[2 * row + 1]);
        let mut column = place;
        while column < columns {
            let value = Vector::<f32, N>::cast_from(x[start + column]) - mean;
            let gradient = Vector::<f32, N>::cast_from(dy[start + column]) * weight[column];
            sum += gradient;
            products += gradient * value * inverse;
            column += width;
        }
    }
    let sum = row_sum::<N>(sum, width);
    let products = row_sum::<N>(products, width);
    if row < rows {
        let count = f32::cast_from(columns * N::value());
        let slope = Vector::<f32, N>::new(products / count);
        let offset = Vector::<f32, N>::new(sum / count);
        let mut column = place;
        while column < columns {
            let value = (Vector::<f32, N>::cast_from(x[start + column]) - mean) * inverse;
            let gradient = Vector::<f32, N>::cast_from(dy[start + column]) * weight[column];
            let mut result = inverse * (gradient - offset - value * slope);
            if comptime!(has_plus) {
                result += Vector::<f32, N>::cast_from(plus[start + column]);
            }
            out[start + column] = Vector::<F, N>::cast_from(result);
            column += width;
        }
    }
}

/// A column's gradients, and their products with the normalised values.
#[derive(CubeType)]
struct Gradients<'a, F: Float, N: Size> {
    x: &'a [Vector<F, N>],
    dy: &'a [Vector<F, N>],
    moments: &'a [f32],
    column: usize,
    columns: usize,
}

#[cube]
impl<'a, F: Float, N: Size> Gradients<'a, F, N> {
    fn new(
        x: &'a [Vector<F, N>],
        dy: &'a [Vector<F, N>],
        moments: &'a [f32],
        column: usize,
        columns: usize,
    ) -> Self {
        Gradients::<'a, F, N> {
            x,
            dy,
            moments,
            column,
            columns,
        }
    }
}

#[cube]
impl<'a, F: Float, N: Size> Terms<F, N> for Gradients<'a, F, N> {
    fn read(&self, row: usize) -> Two<F, N> {
        let at = row * self.columns + self.column;
        Two::new(self.x[at], self.dy[at])
    }

    fn of(&self, read: &Two<F, N>, row: usize) -> Two<f32, N> {
        let mean = Vector::<f32, N>::new(self.moments[2 * row]);
        let inverse = Vector::<f32, N>::new(self.moments[2 * row + 1]);
        let value = (Vector::<f32, N>::cast_from(read.first) - mean) * inverse;
        let gradient = Vector::<f32, N>::cast_from(read.second);
        Two::new(gradient, gradient * value)
    }
}

/// Computes sums over some rows of the gradients, and of their products with the normalised values.
#[cube(launch_unchecked, address_type = "dynamic")]
fn sum_gradients<F: Float, N: Size>(
    x: &[Vector<F, N>],
    dy: &[Vector<F, N>],
    moments: &[f32],
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
    let mut of_lane = Two::<f32, N>::zero();
    if lane < lanes && column < columns {
        let terms = Gradients::<F, N>::new(x, dy, moments, column, columns);
        add_part::<F, N, Gradients<F, N>>(&mut of_lane, &terms, rows, rows_of_part, lane, lanes);
    }
    write_part::<N>(sums, &of_lane, column, columns, width, lanes);
}

#[cube(launch_unchecked, address_type = "dynamic")]
fn finish_gradients<N: Size>(
    sums: &[Vector<f32, N>],
    weight: &mut [Vector<f32, N>],
    bias: &mut [Vector<f32, N>],
    parts: usize,
    columns: usize,
) {
    let unit = UNIT_POS as usize;
    let column = CUBE_POS_X as usize * FINISH_WIDTH + unit % FINISH_WIDTH;
    let sums = over_parts::<N>(sums, column, parts, columns);
    if unit < FINISH_WIDTH && column < columns {
        bias[column] = sums.first;
        weight[column] = sums.second;
    }
}
