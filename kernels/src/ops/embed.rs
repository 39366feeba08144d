//! The embedding at the start of a vision transformer.

use burn::tensor::Tensor;

use crate::gpu;
use crate::policy::{Engine, engine};

/// Puts a class token, if any, before the patches of each image, and adds positions.
///
/// `patches` is \[images, patches, features\], `token` \[1, 1, features\], `positions` \[1, tokens,
/// features\], and the result \[images, tokens, features\]. On a CPU, and without a token, Burn
/// computes it.
///
/// ```
/// use burn::tensor::{Device, Tensor};
///
/// let device = Device::flex();
/// let (patches, token) = (Tensor::ones([2, 4, 8], &device), Tensor::ones([1, 1, 8], &device));
/// let positions = Tensor::ones([1, 5, 8], &device);
/// assert_eq!(kernels::ops::embed(patches, Some(token), positions).dims(), [2, 5, 8]);
/// ```
///
/// # Panics
/// Panics if the shapes do not match, as Burn's own operations do.
pub fn embed(patches: Tensor<3>, token: Option<Tensor<3>>, positions: Tensor<3>) -> Tensor<3> {
    let dtype = patches.dtype();
    match token {
        None => patches + positions.cast(dtype),
        Some(token) if engine(&patches) == Engine::Gpu => gpu::embed(patches, token, positions),
        Some(token) => {
            let token = token.cast(dtype).repeat_dim(0, patches.dims()[0]);
            Tensor::cat(vec![token, patches], 1) + positions.cast(dtype)
        }
    }
}
