//! Channels that are no whole vectors, such as the three of an image: zeros behind them make them so.

use burn::backend::cubecl::dtype_to_storage_type;
use burn::tensor::Shape;
use burn_cubecl::tensor::CubeTensor;
use cubecl::calculate_cube_count_elemwise;
use cubecl::prelude::*;

use super::super::matrix::arg;
use super::super::sums::cube;
use super::launch::{address, memory};

/// A contiguous tensor with another first and last size, both larger or both smaller, if they are others: what
/// there is more of is zero.
pub(super) fn widen(tensor: CubeTensor, shape: [u32; 4]) -> CubeTensor {
    let wanted = Shape::new(shape.map(|size| size as usize));
    let old = tensor.meta.shape();
    if old.num_elements() == wanted.num_elements() {
        return tensor;
    }
    let width = |shape: &Shape| shape.iter().last().copied().unwrap_or(1);
    let (from, to) = (width(old), width(&wanted));
    let (rows, numbers) = (old.num_elements() / from.max(1), wanted.num_elements());
    let out = memory(&tensor, shape, tensor.dtype);
    // SAFETY: a unit reads a row below `rows` and a column below `from`, which `tensor` has, and writes one
    // of as many numbers as `out` has.
    unsafe {
        change_width::launch_unchecked(
            &tensor.client,
            calculate_cube_count_elemwise(&tensor.client, numbers, cube()),
            cube(),
            address(&[&tensor, &out]),
            1,
            arg(&tensor),
            arg(&out),
            rows,
            numbers,
            from,
            to,
            dtype_to_storage_type(tensor.dtype),
        );
    }
    out
}

#[cube(launch_unchecked, address_type = "dynamic")]
fn change_width<F: Float, N: Size>(
    source: &[Vector<F, N>],
    out: &mut [Vector<F, N>],
    rows: usize,
    numbers: usize,
    #[comptime] from: usize,
    #[comptime] to: usize,
    #[define(F)] _dtype: ElemType,
) {
    let at = ABSOLUTE_POS;
    if at < numbers {
        let (row, column) = (at / to, at % to);
        let mut value = Vector::<F, N>::new(F::new(0.0f32));
        if row < rows && column < from {
            value = source[row * from + column];
        }
        out[at] = value;
    }
}
