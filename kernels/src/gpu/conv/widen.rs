//! Pads channels that are no whole vectors, such as the three of an image, with zeros.

use burn::backend::cubecl::dtype_to_storage_type;
use burn::tensor::Shape;
use burn_cubecl::kernel::into_contiguous;
use burn_cubecl::tensor::CubeTensor;
use cubecl::calculate_cube_count_elemwise;
use cubecl::prelude::*;

use super::super::matrix::{address, arg, memory};
use super::super::sums::cube;
use super::super::tensor_cores::VECTOR;

/// Changes the last size of a tensor of four dimensions to `channels`, if it differs; additional
/// numbers are zero. The result is contiguous for any layout of `tensor`.
pub(super) fn widen(tensor: CubeTensor, channels: u32) -> CubeTensor {
    let sizes = [0, 1, 2, 3].map(|dim| tensor.meta.shape()[dim]);
    let strides = [0, 1, 2, 3].map(|dim| tensor.meta.strides()[dim]);
    let [batch, height, width, from] = sizes;
    let to = channels as usize;
    if from == to {
        return into_contiguous(tensor);
    }
    let shape = Shape::new([batch, height, width, to]);
    let out = memory(&tensor, shape, tensor.dtype);
    // Whole vectors of a 16-bit type.
    let fits = tensor.dtype.size() == 2 && to.is_multiple_of(VECTOR);
    let vector = if fits { VECTOR } else { 1 };
    let vectors = batch * height * width * to / vector;
    // SAFETY: a unit reads channels of a pixel that `tensor` has, and writes one of as many vectors
    // as `out` has.
    unsafe {
        change_width::launch_unchecked(
            &tensor.client,
            calculate_cube_count_elemwise(&tensor.client, vectors, cube()),
            cube(),
            address(&[&tensor, &out]),
            vector,
            arg(&tensor),
            arg(&out),
            vectors,
            height,
            width,
            strides[0],
            strides[1],
            strides[2],
            strides[3],
            from,
            to,
            dtype_to_storage_type(tensor.dtype),
        );
    }
    out
}

#[cube(launch_unchecked, address_type = "dynamic")]
fn change_width<F: Float, N: Size>(
    source: &[F],
    out: &mut [Vector<F, N>],
    vectors: usize,
    height: usize,
    width: usize,
    of_image: usize,
    of_row: usize,
    of_pixel: usize,
    of_channel: usize,
    #[comptime] from: usize,
    #[comptime] to: usize,
    #[define(F)] _dtype: ElemType,
) {
    let at = ABSOLUTE_POS;
    if at < vectors {
        let beside = comptime!(to).runtime() / N::value();
        let first = at % beside * N::value();
        let pixel = at / beside;
        let row = pixel / width;
        let start = row / height * of_image + row % height * of_row + pixel % width * of_pixel;
        let mut vector = Vector::<F, N>::new(F::new(0.0f32));
        #[unroll]
        for index in 0..N::value() {
            let channel = first + index;
            if channel < from {
                vector.insert(index, source[start + channel * of_channel]);
            }
        }
        out[at] = vector;
    }
}
