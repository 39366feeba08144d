//! Multi-head self-attention (Vaswani et al. 2017, <https://arxiv.org/abs/1706.03762>) as one node
//! of the graph. With Burn's operations, taking queries, keys and values out of their tensor costs
//! three gradients as large as all of it, which are then added up.
//!
//! If tensor cores have instructions for the type, [`super::flash`] computes all of it. Otherwise
//! Burn computes the products.

use std::sync::{Arc, OnceLock};

use burn::backend::Cube;
use burn::tensor::Tensor;
use burn_cubecl::kernel::into_contiguous;
use burn_cubecl::tensor::CubeTensor;
use cubecl::calculate_cube_count_elemwise;
use cubecl::prelude::*;

use super::flash::FlashAttention;
use super::matrix::{Matrix, primitive};
use super::operation::{BackwardInput, Operation, apply};
use super::softmax::{softmax, softmax_gradient};
use super::sums::cube;

/// Computes `softmax(q kᵀ / √depth) v` for every head.
///
/// `qkv` is \[batch, tokens, 3 × heads × depth\]: queries, keys and values in this order, each with
/// the heads one after another. The result is \[batch, tokens, heads × depth\] in the same type.
/// Requires a device for which [`super::is_gpu`] is true.
///
/// # Panics
///
/// Panics if the last dimension is no multiple of 3 × heads, or if `qkv` is empty.
pub fn attention(qkv: Tensor<3>, heads: usize) -> Tensor<3> {
    let [_, _, width] = qkv.dims();
    assert!(
        qkv.shape().num_elements() > 0 && heads > 0 && width.is_multiple_of(3 * heads),
        "attention of {heads} heads on {:?}",
        qkv.dims()
    );
    let inner = primitive(qkv.clone().without_autodiff());
    match FlashAttention::new(&inner, heads) {
        Some(flash) => apply(Arc::new(flash), qkv),
        None => apply(
            Arc::new(Attention {
                heads,
                kept: OnceLock::new(),
            }),
            qkv,
        ),
    }
}

#[derive(Debug)]
struct Attention {
    heads: usize,
    /// Set by the first forward pass.
    kept: OnceLock<Kept>,
}

/// The tensors that backward needs.
#[derive(Debug)]
struct Kept {
    parts: Parts,
    /// The attention weights: \[batch, heads, tokens, tokens\].
    shares: Tensor<4>,
}

/// \[batch, heads, tokens, depth\] each, in the memory order of products. The queries are divided
/// by √depth, which costs less than dividing the larger product.
#[derive(Clone, Debug)]
struct Parts {
    query: Tensor<4>,
    key: Tensor<4>,
    value: Tensor<4>,
}

impl Operation<1> for Attention {
    fn forward(&self, [qkv]: [CubeTensor; 1]) -> CubeTensor {
        let parts = split(tensor(qkv), self.heads);
        let shares = softmax(parts.query.clone().matmul(parts.key.clone().transpose()));
        let out = shares.clone().matmul(parts.value.clone()).swap_dims(1, 2);
        self.kept.get_or_init(|| Kept { parts, shares });
        let [batch, tokens, heads, depth] = out.dims();
        primitive(out.reshape([batch, tokens, heads * depth]))
    }

    fn backward(&self, BackwardInput { dy, .. }: BackwardInput) -> [Option<CubeTensor>; 1] {
        let Some(Kept { parts, shares }) = self.kept.get() else {
            return [None];
        };
        let Parts { query, key, value } = parts.clone();
        let [batch, heads, tokens, depth] = value.dims();
        let dy = tensor::<3>(dy).reshape([batch, tokens, heads, depth]);
        let dy = contiguous(dy.swap_dims(1, 2));
        let to_value = shares.clone().transpose().matmul(dy.clone());
        let to_shares = dy.matmul(value.transpose());
        let to_scores = softmax_gradient(shares.clone(), to_shares);
        let to_key = to_scores.clone().transpose().matmul(query);
        let to_query = to_scores.matmul(key);
        let gradients = Parts {
            query: to_query,
            key: to_key,
            value: to_value,
        };
        [Some(primitive(join(gradients)))]
    }
}

/// Splits into queries, keys and values of every head.
fn split(qkv: Tensor<3>, heads: usize) -> Parts {
    let [batch, tokens, width] = qkv.dims();
    let depth = width / (3 * heads);
    let rows = Matrix::new(primitive(qkv.reshape([batch * tokens * 3 * heads, depth])));
    let part = || rows.empty([batch, heads, tokens, depth]);
    let [query, key, value] = [part(), part(), part()];
    let vectors = rows.rows() * rows.row_vectors();
    // SAFETY: every unit writes at most one vector, its own; the parts together have as many.
    unsafe {
        split_heads::launch_unchecked(
            rows.client(),
            calculate_cube_count_elemwise(rows.client(), vectors, cube()),
            cube(),
            rows.address(),
            rows.vector(),
            rows.arg(),
            query.arg(),
            key.arg(),
            value.arg(),
            tokens,
            heads,
            rows.row_vectors(),
            vectors,
            scale(depth),
            rows.elem(),
        );
    }
    let [query, key, value] = [query, key, value].map(|part| tensor(part.into_tensor()));
    Parts { query, key, value }
}

/// Joins the gradients of the parts to the gradient of the tensor that [`split`] divided.
fn join(parts: Parts) -> Tensor<3> {
    let [batch, heads, tokens, depth] = parts.query.dims();
    let Parts { query, key, value } = parts;
    let [query, key, value] = [query, key, value].map(|part| Matrix::new(primitive(part)));
    let out = query.empty([batch, tokens, 3 * heads * depth]);
    let vectors = 3 * query.rows() * query.row_vectors();
    // SAFETY: as in `split`.
    unsafe {
        join_heads::launch_unchecked(
            query.client(),
            calculate_cube_count_elemwise(query.client(), vectors, cube()),
            cube(),
            out.address(),
            query.vector(),
            query.arg(),
            key.arg(),
            value.arg(),
            out.arg(),
            tokens,
            heads,
            query.row_vectors(),
            vectors,
            scale(depth),
            query.elem(),
        );
    }
    tensor(out.into_tensor())
}

fn scale(depth: usize) -> f32 {
    (depth as f32).powf(-0.5)
}

fn tensor<const D: usize>(primitive: CubeTensor) -> Tensor<D> {
    Tensor::from_primitive::<Cube>(primitive)
}

fn contiguous(values: Tensor<4>) -> Tensor<4> {
    tensor(into_contiguous(primitive(values)))
}

/// The place of a vector of \[batch, tokens, 3, heads, depth\] in its part, \[batch, heads, tokens,
/// depth\].
#[cube]
fn place(at: usize, tokens: usize, heads: usize, row: usize) -> usize {
    let head = at / row % heads;
    let token = at / (row * heads * 3);
    let (batch, token) = (token / tokens, token % tokens);
    ((batch * heads + head) * tokens + token) * row + at % row
}

#[cube(launch_unchecked, address_type = "dynamic")]
fn split_heads<F: Float, N: Size>(
    qkv: &[Vector<F, N>],
    query: &mut [Vector<F, N>],
    key: &mut [Vector<F, N>],
    value: &mut [Vector<F, N>],
    tokens: usize,
    heads: usize,
    row: usize,
    vectors: usize,
    scale: f32,
    #[define(F)] _dtype: ElemType,
) {
    let at = ABSOLUTE_POS;
    if at < vectors {
        let part = at / (row * heads) % 3;
        let place = place(at, tokens, heads, row);
        if part == 0 {
            let scaled = Vector::<f32, N>::cast_from(qkv[at]) * Vector::<f32, N>::new(scale);
            query[place] = Vector::<F, N>::cast_from(scaled);
        } else if part == 1 {
            key[place] = qkv[at];
        } else {
            value[place] = qkv[at];
        }
    }
}

#[cube(launch_unchecked, address_type = "dynamic")]
fn join_heads<F: Float, N: Size>(
    query: &[Vector<F, N>],
    key: &[Vector<F, N>],
    value: &[Vector<F, N>],
    out: &mut [Vector<F, N>],
    tokens: usize,
    heads: usize,
    row: usize,
    vectors: usize,
    scale: f32,
    #[define(F)] _dtype: ElemType,
) {
    let at = ABSOLUTE_POS;
    if at < vectors {
        let part = at / (row * heads) % 3;
        let place = place(at, tokens, heads, row);
        if part == 0 {
            let scaled = Vector::<f32, N>::cast_from(query[place]) * Vector::<f32, N>::new(scale);
            out[at] = Vector::<F, N>::cast_from(scaled);
        } else if part == 1 {
            out[at] = key[place];
        } else {
            out[at] = value[place];
        }
    }
}
