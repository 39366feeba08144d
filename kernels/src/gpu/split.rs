//! Products of f32 numbers on tensor cores. Each number is split into the sum of two in bf16: the
//! first is the number rounded, the second the remainder, rounded. Three of the four products of
//! two sums are large, and only these are computed, so that 16 bits of a number count; f32 has 24,
//! bf16 8 and TF32 11.
//!
//! Henry, Tang and Heinecke 2019, <https://arxiv.org/abs/1904.06376>; JAX's `BF16_BF16_F32_X3`, and
//! one of the two modes of PyTorch's `float32_matmul_precision` "high". Infinity becomes NaN, which
//! is not finite either.

use burn::backend::cubecl::dtype_to_storage_type;
use burn::tensor::{DType, Shape};
use burn_cubecl::tensor::CubeTensor;
use cubecl::calculate_cube_count_elemwise;
use cubecl::prelude::*;

use super::matrix::{address, arg, memory};
use super::sums::cube;
use super::tensor_cores::VECTOR;

/// Halves of a number.
pub(super) const HALVES: u32 = 2;

/// Partial products of a product.
pub(super) const TERMS: u32 = 3;

/// Numbers in f32 that are read at once.
const AT_ONCE: usize = 4;

/// The type of the halves.
pub(super) const HALF: DType = DType::BF16;

/// The offsets of the halves that a term multiplies, of the first factor and of the second; the
/// second half begins `further` on.
#[cube]
pub(super) fn halves_of(term: u32, #[comptime] further: u32) -> (u32, u32) {
    (
        select(term == 1, further, 0u32),
        select(term == 2, further, 0u32),
    )
}

/// Turns a tensor \[…, channels\] in f32, contiguous and of whole vectors, into one with twice the
/// channels: the first halves of all, then the second.
pub(super) fn split(tensor: &CubeTensor) -> CubeTensor {
    let shape = tensor.meta.shape();
    let channels = shape.iter().last().copied().unwrap_or(0);
    let before = shape
        .iter()
        .copied()
        .take(shape.num_dims().saturating_sub(1));
    let wide: Vec<usize> = before.chain([HALVES as usize * channels]).collect();
    let out = memory(tensor, Shape::from(wide), HALF);
    let vectors = shape.num_elements() / VECTOR;
    // SAFETY: a unit reads an existing vector of channels of `tensor`, and writes the same vector
    // of both halves.
    unsafe {
        split_numbers::launch_unchecked(
            &tensor.client,
            calculate_cube_count_elemwise(&tensor.client, vectors, cube()),
            cube(),
            address(&[tensor, &out]),
            AT_ONCE,
            VECTOR,
            arg(tensor),
            arg(&out),
            vectors,
            channels / VECTOR,
            dtype_to_storage_type(HALF),
        );
    }
    out
}

#[cube(launch_unchecked, address_type = "dynamic")]
fn split_numbers<F: Float, P: Size, V: Size>(
    source: &[Vector<f32, P>],
    out: &mut [Vector<F, V>],
    vectors: usize,
    beside: usize,
    #[define(F)] _half: ElemType,
) {
    let at = ABSOLUTE_POS;
    if at < vectors {
        let mut upper = Vector::<F, V>::empty();
        let mut lower = Vector::<F, V>::empty();
        #[unroll]
        for part in 0..comptime!(VECTOR / AT_ONCE) {
            let numbers = source[at * comptime!(VECTOR / AT_ONCE) + part];
            #[unroll]
            for i in 0..AT_ONCE {
                let (first, second) = halves::<f32, F>(numbers.extract(i));
                upper.insert(comptime!(part * AT_ONCE + i), first);
                lower.insert(comptime!(part * AT_ONCE + i), second);
            }
        }
        let first = at / beside * beside + at;
        out[first] = upper;
        out[first + beside] = lower;
    }
}

/// Returns both halves of a number.
#[cube]
pub(super) fn halves<S: Float, F: Float>(number: S) -> (F, F) {
    let first = F::cast_from(number);
    (first, F::cast_from(number - S::cast_from(first)))
}
