//! Mean over pixels. With Burn's operations, the mean over a part of an image is a copy of the
//! part, a copy in f32 and two sums. The gradient costs as much again, and then has its channels
//! first.

use std::sync::Arc;

use burn::tensor::Tensor;
use burn_cubecl::tensor::CubeTensor;
use cubecl::calculate_cube_count_elemwise;
use cubecl::prelude::*;

use super::matrix::Matrix;
use super::operation::{BackwardInput, Operation, apply};
use super::sums::cube;

/// The mean over the first `height` rows and `width` columns, at least one each: \[batch,
/// channels\], in the type of `x`; summed in f32. `None` if `x` has fewer.
///
/// `x` is \[batch, channels, height, width\], best with its channels last in memory, as is its
/// gradient. For a device that [`super::is_gpu`], and at least one value.
pub fn mean_of_pixels(x: Tensor<4>, [height, width]: [usize; 2]) -> Option<Tensor<2>> {
    let [_, _, rows, columns] = x.dims();
    let mean = Mean {
        source: [rows, columns],
        part: [height, width],
    };
    let is_inside = (1..=rows).contains(&height) && (1..=columns).contains(&width);
    is_inside.then(|| apply(Arc::new(mean), x))
}

/// Height and width of the images and of the averaged part.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Mean {
    source: [usize; 2],
    part: [usize; 2],
}

impl Mean {
    fn share(&self) -> f32 {
        ((self.part[0] * self.part[1]) as f32).recip()
    }
}

impl Operation<1> for Mean {
    fn forward(&self, [x]: [CubeTensor; 1]) -> CubeTensor {
        let x = Matrix::of_images(x);
        let [height, width] = self.source;
        let out = x.empty([x.rows() / (height * width), x.columns()]);
        let vectors = out.rows() * x.row_vectors();
        // SAFETY: a unit that has a vector of `out` writes it, and reads pixels of one image of
        // `x`.
        unsafe {
            mean_of_each::launch_unchecked(
                x.client(),
                calculate_cube_count_elemwise(x.client(), vectors, cube()),
                cube(),
                x.address(),
                x.vector(),
                x.arg(),
                out.arg(),
                vectors,
                x.row_vectors(),
                self.share(),
                *self,
                x.elem(),
            );
        }
        out.into_tensor()
    }

    fn backward(&self, BackwardInput { dy, .. }: BackwardInput) -> [Option<CubeTensor>; 1] {
        let dy = Matrix::new(dy);
        let [height, width] = self.source;
        let out = dy.empty([dy.rows(), height, width, dy.columns()]);
        let vectors = out.rows() * dy.row_vectors();
        // SAFETY: a unit that has a vector of `out` writes it, and reads one of its image's row of
        // `dy`.
        unsafe {
            gradient_of_each::launch_unchecked(
                dy.client(),
                calculate_cube_count_elemwise(dy.client(), vectors, cube()),
                cube(),
                out.address(),
                dy.vector(),
                dy.arg(),
                out.arg(),
                vectors,
                dy.row_vectors(),
                self.share(),
                *self,
                dy.elem(),
            );
        }
        [Some(out.into_images())]
    }
}

#[cube(launch_unchecked, address_type = "dynamic")]
fn mean_of_each<F: Float, N: Size>(
    x: &[Vector<F, N>],
    out: &mut [Vector<F, N>],
    vectors: usize,
    columns: usize,
    share: f32,
    #[comptime] mean: Mean,
    #[define(F)] _dtype: ElemType,
) {
    let at = ABSOLUTE_POS;
    if at < vectors {
        let (image, column) = (at / columns, at % columns);
        let mut sum = Vector::<f32, N>::new(0.0f32);
        for row in 0..mean.part[0] {
            for place in 0..mean.part[1] {
                let pixel = (image * mean.source[0] + row) * mean.source[1] + place;
                sum += Vector::<f32, N>::cast_from(x[pixel * columns + column]);
            }
        }
        out[at] = Vector::<F, N>::cast_from(sum * Vector::<f32, N>::new(share));
    }
}

#[cube(launch_unchecked, address_type = "dynamic")]
fn gradient_of_each<F: Float, N: Size>(
    dy: &[Vector<F, N>],
    out: &mut [Vector<F, N>],
    vectors: usize,
    columns: usize,
    share: f32,
    #[comptime] mean: Mean,
    #[define(F)] _dtype: ElemType,
) {
    let at = ABSOLUTE_POS;
    if at < vectors {
        let (pixel, column) = (at / columns, at % columns);
        let (line, place) = (pixel / mean.source[1], pixel % mean.source[1]);
        let (image, row) = (line / mean.source[0], line % mean.source[0]);
        let mut value = Vector::<f32, N>::new(0.0f32);
        if row < mean.part[0] && place < mean.part[1] {
            let gradient = Vector::<f32, N>::cast_from(dy[image * columns + column]);
            value = gradient * Vector::<f32, N>::new(share);
        }
        out[at] = Vector::<F, N>::cast_from(value);
    }
}
