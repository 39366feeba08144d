//! Attention on NVIDIA's tensor cores, without writing the attention weights to memory:
//! FlashAttention-2 (Dao 2023, <https://arxiv.org/abs/2307.08691>, Algorithms 1 and 2). Its
//! backward pass adds the gradient of the queries atomically. Here that gradient has its own
//! kernel, as in Triton's tutorial on fused attention
//! (<https://triton-lang.org/main/getting-started/tutorials/06-fused-attention.html>), so every run
//! gives the same bits. [`super::split`] splits f32 factors and weights.

mod backward;
mod forward;
mod tile;
mod tokens;

#[cfg(all(test, feature = "cuda"))]
mod tests;

use std::f32::consts::LOG2_E;
use std::sync::OnceLock;

use burn::backend::cubecl::dtype_to_storage_type;
use burn::tensor::{DType, Shape};
use burn_cubecl::kernel::into_contiguous;
use burn_cubecl::tensor::CubeTensor;
use cubecl::prelude::*;

use super::matrix::{address, arg, memory};
use super::operation::{BackwardInput, Operation};
use super::split::{HALF, split};
use super::tensor_cores::{VECTOR, has_instructions};
use backward::{gradient_of_queries, gradients_of_keys_and_values};
use forward::attend;
use tile::Tile;

/// Attention with this number of heads, and all its sizes.
#[derive(Debug)]
pub(super) struct FlashAttention {
    tile: Tile,
    images: usize,
    tokens: usize,
    heads: usize,
    /// Type of queries, keys, values and the result.
    dtype: DType,
    /// Set by the first forward pass.
    kept: OnceLock<Kept>,
}

/// The tensors that backward needs besides queries, keys and values.
#[derive(Debug)]
struct Kept {
    /// Queries, keys and values, if they are split.
    halves: Option<CubeTensor>,
    result: CubeTensor,
    /// Binary logarithms of the sums of each token's weights: \[images, heads, tokens\].
    totals: CubeTensor,
}

impl FlashAttention {
    /// For `qkv`, \[images, tokens, 3 × heads × depth\]. `None` if the device lacks the
    /// instructions for its type, or a size is beyond the range of the kernels.
    pub fn new(qkv: &CubeTensor, heads: usize) -> Option<Self> {
        let [images, tokens, width] = *qkv.meta.shape().iter().as_slice() else {
            return None;
        };
        let depth = width / (3 * heads);
        let split = qkv.dtype == DType::F32;
        let of_factors = if split { HALF } else { qkv.dtype };
        let tile = Tile::new(tokens, depth, split)?;
        let cubes = tokens.div_ceil(tile.rows()).checked_mul(heads)?;
        // Pairs of numbers have indices of 32 bits, and so have cubes, except for one.
        let pairs = qkv.meta.shape().num_elements() / 2 * tile.halves();
        let is_counted =
            pairs <= u32::MAX as usize && cubes.checked_mul(images)? <= i32::MAX as usize;
        let is_known = has_instructions(&qkv.client, of_factors);
        (is_counted && is_known).then_some(Self {
            tile,
            images,
            tokens,
            heads,
            dtype: qkv.dtype,
            kept: OnceLock::new(),
        })
    }

    /// Returns the cubes for all tokens of all heads.
    fn cubes(&self) -> CubeCount {
        let of_head = self.tokens.div_ceil(self.tile.rows());
        CubeCount::Static((of_head * self.heads * self.images) as u32, 1, 1)
    }

    fn cube(&self) -> CubeDim {
        CubeDim::new_1d(self.tile.units() as u32)
    }

    /// Factor of scores.
    fn scale(&self) -> f32 {
        (self.tile.depth as f32).powf(-0.5)
    }

    /// Returns the factor of scores that become powers of 2.
    fn to_power(&self) -> f32 {
        self.scale() * LOG2_E
    }

    /// Allocates a number for each token of each head.
    fn numbers(&self, like: &CubeTensor) -> CubeTensor {
        let shape = Shape::new([self.images, self.heads, self.tokens]);
        memory(like, shape, DType::F32)
    }

    /// Memory for results: `parts` numbers for each number of a token, of all heads.
    fn of_result(&self, like: &CubeTensor, parts: usize) -> CubeTensor {
        let width = parts * self.heads * self.tile.depth;
        let shape = Shape::new([self.images, self.tokens, width]);
        memory(like, shape, self.dtype)
    }

    /// The factors of products.
    fn factors(&self, numbers: CubeTensor) -> CubeTensor {
        let numbers = into_contiguous(numbers);
        match self.tile.split {
            true => split(&numbers),
            false => numbers,
        }
    }

    /// Types of factors and results, as kernels want them.
    fn types(&self, factors: &CubeTensor) -> [ElemType; 2] {
        [factors.dtype, self.dtype].map(dtype_to_storage_type)
    }

    fn run(&self, qkv: CubeTensor) -> Kept {
        let qkv = self.factors(qkv);
        let (result, totals) = (self.of_result(&qkv, 1), self.numbers(&qkv));
        let [of_factors, of_result] = self.types(&qkv);
        // SAFETY: a unit reads numbers of existing tokens of an existing head and image, and writes
        // numbers of its own tokens.
        unsafe {
            attend::launch_unchecked(
                &qkv.client,
                self.cubes(),
                self.cube(),
                address(&[&qkv, &result]),
                VECTOR,
                arg(&qkv),
                arg(&qkv),
                arg(&result),
                arg(&totals),
                self.tokens as u32,
                self.heads as u32,
                self.to_power(),
                self.tile,
                of_factors,
                of_result,
            );
        }
        Kept {
            halves: self.tile.split.then_some(qkv),
            result,
            totals,
        }
    }

    /// The gradient of queries, keys and values, which are already split if necessary.
    fn gradient(&self, qkv: CubeTensor, kept: &Kept, dy: CubeTensor) -> CubeTensor {
        let (qkv, dy) = (into_contiguous(qkv), self.factors(dy));
        let (out, dots) = (self.of_result(&qkv, 3), self.numbers(&qkv));
        let (tokens, heads) = (self.tokens as u32, self.heads as u32);
        let [of_factors, of_result] = self.types(&qkv);
        // SAFETY: as in `run`; the kept tensors have all tokens, and `dy` is as large as its
        // result. The first kernel writes all of `dots`, which the second reads.
        unsafe {
            gradient_of_queries::launch_unchecked(
                &qkv.client,
                self.cubes(),
                self.cube(),
                address(&[&qkv, &out]),
                VECTOR,
                arg(&qkv),
                arg(&qkv),
                arg(&kept.result),
                arg(&dy),
                arg(&kept.totals),
                arg(&dots),
                arg(&out),
                tokens,
                heads,
                self.scale(),
                self.to_power(),
                self.tile,
                of_factors,
                of_result,
            );
            gradients_of_keys_and_values::launch_unchecked(
                &qkv.client,
                self.cubes(),
                self.cube(),
                address(&[&qkv, &out]),
                VECTOR,
                arg(&qkv),
                arg(&qkv),
                arg(&dy),
                arg(&kept.totals),
                arg(&dots),
                arg(&out),
                tokens,
                heads,
                self.scale(),
                self.to_power(),
                self.tile,
                of_factors,
                of_result,
            );
        }
        out
    }
}

impl Operation<1> for FlashAttention {
    fn forward(&self, [qkv]: [CubeTensor; 1]) -> CubeTensor {
        let kept = self.run(qkv);
        let result = kept.result.clone();
        self.kept.get_or_init(|| kept);
        result
    }

    fn backward(&self, BackwardInput { x: qkv, dy, .. }: BackwardInput) -> [Option<CubeTensor>; 1] {
        let gradient = self.kept.get().and_then(|kept| {
            let factors = kept.halves.clone().or(qkv)?;
            Some(self.gradient(factors, kept, dy))
        });
        [gradient]
    }

    fn reads_input(&self) -> bool {
        !self.tile.split
    }
}
