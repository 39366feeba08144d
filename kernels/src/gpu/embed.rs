//! The beginning of a vision transformer: a class token before the patches, and a position added to
//! each. In Burn, the gradient of a parameter that all images share has one unit add up a number of
//! all of them. The class token has the gradient of the first position.

use std::slice::from_ref;
use std::sync::Arc;

use burn::tensor::{Shape, Tensor};
use burn_cubecl::kernel::slice;
use burn_cubecl::ops::reshape;
use burn_cubecl::tensor::CubeTensor;
use cubecl::calculate_cube_count_elemwise;
use cubecl::prelude::*;

use super::column_sums::ColumnSums;
use super::matrix::{Matrix, arg};
use super::operation::{BackwardInput, Operation, apply_with};
use super::sums::cube;

/// Puts `token` before the patches of each image, and adds `positions`.
///
/// `patches` is \[images, patches, features\], `token` \[1, 1, features\], `positions` \[1, 1 +
/// patches, features\]. The result is \[images, 1 + patches, features\] in the type of `patches`,
/// rounded once. Requires a device for which [`super::is_gpu`] is true, and at least one value of
/// each.
///
/// # Panics
///
/// Panics if the shapes do not match.
pub fn embed(patches: Tensor<3>, token: Tensor<3>, positions: Tensor<3>) -> Tensor<3> {
    let [_, count, features] = patches.dims();
    assert_eq!(token.dims(), [1, 1, features]);
    assert_eq!(positions.dims(), [1, 1 + count, features]);
    let parameters = [token, positions].map(|parameter| parameter.flatten::<1>(0, 2));
    apply_with(Arc::new(Embed), patches, parameters)
}

#[derive(Debug)]
struct Embed;

impl Operation<3> for Embed {
    fn forward(&self, [patches, token, positions]: [CubeTensor; 3]) -> CubeTensor {
        let [images, count, features] = patches.meta.shape().dims();
        let patches = Matrix::new(patches);
        let out = patches.empty([images, 1 + count, features]);
        let vectors = out.rows() * out.row_vectors();
        // SAFETY: a unit that has a vector of `out` writes it, and reads the position of its token,
        // which all have, and an existing token or patch.
        unsafe {
            put_tokens::launch_unchecked(
                out.client(),
                calculate_cube_count_elemwise(out.client(), vectors, cube()),
                cube(),
                out.address(),
                out.vector(),
                patches.arg(),
                arg(&token),
                arg(&positions),
                out.arg(),
                vectors,
                count,
                out.row_vectors(),
                out.elem(),
            );
        }
        out.into_tensor()
    }

    fn backward(
        &self,
        BackwardInput { dy, to_first, .. }: BackwardInput,
    ) -> [Option<CubeTensor>; 3] {
        let [images, tokens, features] = dy.meta.shape().dims();
        let dy = Matrix::new(dy).into_tensor();
        let patches = to_first.then(|_| slice(dy.clone(), &[0..images, 1..tokens, 0..features]));
        let of_images = Matrix::new(reshape(dy, Shape::new([images, tokens * features])));
        let positions = ColumnSums::of(&of_images).add_up();
        let token = slice(positions.clone(), from_ref(&(0..features)));
        [patches, Some(token), Some(positions)]
    }
}

#[cube(launch_unchecked, address_type = "dynamic")]
fn put_tokens<F: Float, N: Size>(
    patches: &[Vector<F, N>],
    token: &[Vector<f32, N>],
    positions: &[Vector<f32, N>],
    out: &mut [Vector<F, N>],
    vectors: usize,
    count: usize,
    columns: usize,
    #[define(F)] _dtype: ElemType,
) {
    let at = ABSOLUTE_POS;
    if at < vectors {
        let of_image = (count + 1) * columns;
        let (image, place) = (at / of_image, at % of_image);
        let mut value = positions[place];
        if place < columns {
            value += token[place];
        } else {
            let patch = image * count * columns + place - columns;
            value += Vector::cast_from(patches[patch]);
        }
        out[at] = Vector::cast_from(value);
    }
}
