//! Multi-head self-attention.

use burn::backend::flex::FlexTensor;
use burn::tensor::{Shape, Tensor};

use super::operation::{Operation, Saved, To, apply, exactly};
use super::tensor::{dims, filled, numbers};
use crate::KernelError;
use crate::cpu::Kernels;

/// Computes `softmax(q kᵀ / √d) v` for every head.
///
/// `qkv` is \[batch, tokens, 3 · width\]: rows of query, key and value, each with the heads one
/// after another. The result is \[batch, tokens, width\]. `bf16` rounds the factors of the products
/// to bf16 if that is faster.
///
/// # Panics
///
/// Panics if the number of heads does not divide the width, as Burn's own operations do.
pub fn attention(qkv: Tensor<3>, heads: usize, bf16: bool) -> Tensor<3> {
    apply(Attention { heads, bf16 }, qkv.into_dispatch(), vec![])
}

#[derive(Debug)]
struct Attention {
    heads: usize,
    bf16: bool,
}

impl Attention {
    fn shape(&self, qkv: &FlexTensor) -> Result<crate::cpu::Attention, KernelError> {
        let &[batch, tokens, rows] = dims(qkv) else {
            return Err(KernelError::Storage);
        };
        // A remainder gives another number of elements, which the kernel refuses.
        let depth = rows / 3 / self.heads.max(1);
        Ok(crate::cpu::Attention {
            batch,
            tokens,
            heads: self.heads,
            depth,
            scale: (depth as f32).sqrt().recip(),
            bf16: self.bf16,
        })
    }
}

impl Operation for Attention {
    fn forward(&self, kernels: &Kernels, inputs: &[FlexTensor]) -> Result<FlexTensor, KernelError> {
        let [qkv] = exactly(inputs)?;
        let shape = self.shape(qkv)?;
        let out = Shape::new([shape.batch, shape.tokens, shape.heads * shape.depth]);
        filled(out, |out| kernels.attention(&shape, numbers(qkv)?, out))
    }

    fn backward(&self, saved: Saved, dy: FlexTensor, to: &mut To<'_>) -> Result<(), KernelError> {
        let kernels = to.kernels;
        let qkv = saved.input(0)?;
        to.fill(0, qkv.layout().shape().clone(), |dqkv| {
            let (shape, dy) = (self.shape(qkv)?, numbers(&dy)?);
            kernels.attention_gradient(&shape, numbers(qkv)?, dy, dqkv)
        })
    }

    fn reads(&self, _index: usize) -> bool {
        true
    }
}
