//! Softmax over the last dimension.

use std::sync::{Arc, OnceLock};

use burn::backend::Cube;
use burn::tensor::Tensor;
use burn_cubecl::tensor::CubeTensor;
use cubecl::prelude::*;

use super::matrix::{Matrix, primitive};
use super::operation::{BackwardInput, Operation, apply};
use super::rows::{cubes, row_largest, row_of_unit, row_sum, width};
use super::sums::cube;

/// Computes the softmax of each row of `x`.
///
/// `x` is \[…, columns\]. The computation is in `f32`, the result in the type of `x`.
///
/// Requires a device for which [`super::is_gpu`] is true, and at least one value.
pub fn softmax<const D: usize>(x: Tensor<D>) -> Tensor<D> {
    apply(Arc::new(Softmax::default()), x)
}

/// Computes the gradient of [`softmax`]'s input from its result `y` and the result's gradient;
/// without autodiff.
pub(super) fn softmax_gradient<const D: usize>(y: Tensor<D>, dy: Tensor<D>) -> Tensor<D> {
    Tensor::from_primitive::<Cube>(gradient(primitive(y), primitive(dy)))
}

fn gradient(y: CubeTensor, dy: CubeTensor) -> CubeTensor {
    let (y, dy) = (Matrix::new(y), Matrix::new(dy));
    let out = y.empty_like();
    // SAFETY: the cubes cover all rows, the units of a row all of its vectors; `dy` is as large as
    // `y`.
    unsafe {
        back_rows::launch_unchecked(
            y.client(),
            cubes(&y),
            cube(),
            y.address(),
            y.vector(),
            y.arg(),
            dy.arg(),
            out.arg(),
            y.rows(),
            y.row_vectors(),
            width(&y),
            y.elem(),
        );
    }
    out.into_tensor()
}

#[derive(Debug, Default)]
struct Softmax {
    /// The result, which backward needs instead of the input.
    result: OnceLock<CubeTensor>,
}

impl Operation<1> for Softmax {
    fn forward(&self, [x]: [CubeTensor; 1]) -> CubeTensor {
        let x = Matrix::new(x);
        let out = x.empty_like();
        // SAFETY: the cubes cover all rows, the units of a row all of its vectors.
        unsafe {
            softmax_rows::launch_unchecked(
                x.client(),
                cubes(&x),
                cube(),
                x.address(),
                x.vector(),
                x.arg(),
                out.arg(),
                x.rows(),
                x.row_vectors(),
                width(&x),
                x.elem(),
            );
        }
        let out = out.into_tensor();
        self.result.get_or_init(|| out.clone());
        out
    }

    fn backward(&self, BackwardInput { dy, .. }: BackwardInput) -> [Option<CubeTensor>; 1] {
        let result = self.result.get().cloned();
        [result.map(|y| gradient(y, dy))]
    }
}

#[cube(launch_unchecked, address_type = "dynamic")]
fn softmax_rows<F: Float, N: Size>(
    x: &[Vector<F, N>],
    out: &mut [Vector<F, N>],
    rows: usize,
    columns: usize,
    #[comptime] width: usize,
    #[define(F)] _dtype: ElemType,
) {
    let row = row_of_unit(width);
    let place = UNIT_POS as usize % width;
    let start = row * columns;
    let most = Vector::<f32, N>::new(row_largest::<F, N>(x, row, rows, columns, width));
    let mut sum = Vector::<f32, N>::new(0.0f32);
    if row < rows {
        let mut column = place;
        while column < columns {
            sum += (Vector::<f32, N>::cast_from(x[start + column]) - most).exp();
            column += width;
        }
    }
    let sum = row_sum::<N>(sum, width);
    if row < rows {
        let share = Vector::<f32, N>::new(1.0f32 / sum);
        let mut column = place;
        while column < columns {
            let value = (Vector::<f32, N>::cast_from(x[start + column]) - most).exp() * share;
            out[start + column] = Vector::<F, N>::cast_from(value);
            column += width;
        }
    }
}

#[cube(launch_unchecked, address_type = "dynamic")]
fn back_rows<F: Float, N: Size>(
    y: &[Vector<F, N>],
    dy: &[Vector<F, N>],
    out: &mut [Vector<F, N>],
    rows: usize,
    columns: usize,
    #[comptime] width: usize,
    #[define(F)] _dtype: ElemType,
) {
    let row = row_of_unit(width);
    let place = UNIT_POS as usize % width;
    let start = row * columns;
    let mut sum = Vector::<f32, N>::new(0.0f32);
    if row < rows {
        let mut column = place;
        while column < columns {
            let value = Vector::<f32, N>::cast_from(y[start + column]);
            sum += value * Vector::<f32, N>::cast_from(dy[start + column]);
            column += width;
        }
    }
    let sum = Vector::<f32, N>::new(row_sum::<N>(sum, width));
    if row < rows {
        let mut column = place;
        while column < columns {
            let value = Vector::<f32, N>::cast_from(y[start + column]);
            let gradient = Vector::<f32, N>::cast_from(dy[start + column]);
            out[start + column] = Vector::<F, N>::cast_from(value * (gradient - sum));
            column += width;
        }
    }
}
