//! Attention in f16 and bf16 on NVIDIA's tensor cores, without writing to memory how much each token takes of each:
//! FlashAttention-2 (Dao 2023, <https://arxiv.org/abs/2307.08691>, Algorithms 1 and 2). Its backward pass adds the
//! gradient of the queries atomically; here that has a kernel of its own, as in Triton's tutorial on fused attention
//! (<https://triton-lang.org/main/getting-started/tutorials/06-fused-attention.html>), for the same bits on every run.

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

use super::matrix::arg;
use super::operation::Operation;
use super::tensor_cores::{VECTOR, has_instructions};
use backward::{gradient_of_queries, gradients_of_keys_and_values};
use forward::attend;
use tile::Tile;

/// Attention of as many heads, with all its sizes.
#[derive(Debug)]
pub(super) struct FlashAttention {
    tile: Tile,
    images: usize,
    tokens: usize,
    heads: usize,
    /// Set by the first forward pass.
    kept: OnceLock<Kept>,
}

/// What backward needs beside queries, keys and values.
#[derive(Debug)]
struct Kept {
    result: CubeTensor,
    /// Binary logarithms of the sums of each token's shares: \[images, heads, tokens\].
    totals: CubeTensor,
}

impl FlashAttention {
    /// For `qkv`, \[images, tokens, 3 × heads × depth\], if the device has the instructions for its type, and no
    /// size is beyond what kernels count with.
    pub fn new(qkv: &CubeTensor, heads: usize) -> Option<Self> {
        let [images, tokens, width] = *qkv.meta.shape().iter().as_slice() else {
            return None;
        };
        let depth = width / (3 * heads);
        let tile = Tile::new(tokens, depth).filter(|_| has_instructions(&qkv.client, qkv.dtype))?;
        let cubes = tokens.div_ceil(tile.rows()).checked_mul(heads)?;
        // Pairs of numbers have indices of 32 bits, and so have cubes, but for one.
        let is_counted = qkv.meta.shape().num_elements() / 2 <= u32::MAX as usize
            && cubes.checked_mul(images)? <= i32::MAX as usize;
        is_counted.then_some(Self {
            tile,
            images,
            tokens,
            heads,
            kept: OnceLock::new(),
        })
    }

    /// Cubes for all tokens of all heads.
    fn cubes(&self) -> CubeCount {
        let of_head = self.tokens.div_ceil(self.tile.rows());
        CubeCount::Static((of_head * self.heads * self.images) as u32, 1, 1)
    }

    fn cube(&self) -> CubeDim {
        CubeDim::new_1d(self.tile.units() as u32)
    }

    /// What scores are multiplied by.
    fn scale(&self) -> f32 {
        (self.tile.depth as f32).powf(-0.5)
    }

    /// The same for scores that become powers of 2.
    fn to_power(&self) -> f32 {
        self.scale() * LOG2_E
    }

    /// A number for each token of each head.
    fn numbers(&self, like: &CubeTensor) -> CubeTensor {
        memory(like, [self.images, self.heads, self.tokens], DType::F32)
    }

    fn run(&self, qkv: CubeTensor) -> Kept {
        let qkv = into_contiguous(qkv);
        let width = self.heads * self.tile.depth;
        let result = memory(&qkv, [self.images, self.tokens, width], qkv.dtype);
        let totals = self.numbers(&qkv);
        // SAFETY: a unit reads numbers of tokens that there are, of a head and an image that there are, and
        // writes those of tokens of its own.
        unsafe {
            attend::launch_unchecked(
                &qkv.client,
                self.cubes(),
                self.cube(),
                qkv.required_address_type(),
                VECTOR,
                arg(&qkv),
                arg(&qkv),
                arg(&result),
                arg(&totals),
                self.tokens as u32,
                self.heads as u32,
                self.to_power(),
                self.tile,
                dtype_to_storage_type(qkv.dtype),
            );
        }
        Kept { result, totals }
    }

    fn gradient(&self, qkv: CubeTensor, kept: &Kept, dy: CubeTensor) -> CubeTensor {
        let (qkv, dy) = (into_contiguous(qkv), into_contiguous(dy));
        let width = 3 * self.heads * self.tile.depth;
        let out = memory(&qkv, [self.images, self.tokens, width], qkv.dtype);
        let dots = self.numbers(&qkv);
        let (tokens, heads) = (self.tokens as u32, self.heads as u32);
        let elem = dtype_to_storage_type(qkv.dtype);
        // SAFETY: as in `run`; what forward kept has all tokens, and `dy` is as large as its result. The first
        // kernel writes all of `dots`, which the second reads.
        unsafe {
            gradient_of_queries::launch_unchecked(
                &qkv.client,
                self.cubes(),
                self.cube(),
                qkv.required_address_type(),
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
                elem,
            );
            gradients_of_keys_and_values::launch_unchecked(
                &qkv.client,
                self.cubes(),
                self.cube(),
                qkv.required_address_type(),
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
                elem,
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

    fn backward(
        &self,
        qkv: Option<CubeTensor>,
        dy: CubeTensor,
        _to_first: bool,
    ) -> [Option<CubeTensor>; 1] {
        let (Some(qkv), Some(kept)) = (qkv, self.kept.get()) else {
            return [None];
        };
        [Some(self.gradient(qkv, kept, dy))]
    }

    fn reads_input(&self) -> bool {
        true
    }
}

/// Memory on the same device.
fn memory(like: &CubeTensor, shape: [usize; 3], dtype: DType) -> CubeTensor {
    let (client, shape) = (like.client.clone(), Shape::new(shape));
    let handle = client.empty(shape.num_elements() * dtype.size());
    CubeTensor::new_contiguous(client, like.device.clone(), shape, handle, dtype)
}
