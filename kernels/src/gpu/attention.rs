//! Multi-head self-attention (Vaswani et al. 2017, <https://arxiv.org/abs/1706.03762>) as one node of the
//! graph. Of Burn's operations, each part that is taken out of queries, keys and values would have a
//! gradient as large as all three, and these would be added up.

use std::sync::{Arc, OnceLock};

use burn::backend::Cube;
use burn::tensor::Tensor;
use burn_cubecl::tensor::CubeTensor;

use super::operation::{Operation, apply};
use super::softmax::{softmax, softmax_gradient};

/// `softmax(q kᵀ / √depth) v` for every head. `qkv` is \[batch, tokens, 3 × heads × depth\]: queries, keys
/// and values in this order, each with the heads one after another; the result is \[batch, tokens,
/// heads × depth\], in the same type. For a device that [`super::computes_on`].
///
/// # Panics
/// If the last dimension is no such multiple, or there is no value.
pub fn attention(qkv: Tensor<3>, heads: usize) -> Tensor<3> {
    let [_, _, width] = qkv.dims();
    assert!(
        qkv.shape().num_elements() > 0 && heads > 0 && width.is_multiple_of(3 * heads),
        "attention of {heads} heads on {:?}",
        qkv.dims()
    );
    let operation = Attention {
        heads,
        shares: OnceLock::new(),
    };
    apply(Arc::new(operation), qkv)
}

#[derive(Debug)]
struct Attention {
    heads: usize,
    /// How much each token takes of each: \[batch, heads, tokens, tokens\]. Set by the first forward pass.
    shares: OnceLock<Tensor<4>>,
}

/// \[batch, heads, tokens, depth\] each; the queries divided by √depth, which costs less than dividing the
/// larger product.
struct Parts {
    query: Tensor<4>,
    key: Tensor<4>,
    value: Tensor<4>,
    scale: f64,
}

impl Attention {
    fn parts(&self, qkv: CubeTensor) -> Parts {
        let qkv: Tensor<3> = Tensor::from_primitive::<Cube>(qkv);
        let [batch, tokens, width] = qkv.dims();
        let depth = width / (3 * self.heads);
        let qkv = qkv.reshape([batch, tokens, 3, self.heads, depth]);
        let part = |index| {
            let part = qkv.clone().narrow(2, index, 1).squeeze_dim::<4>(2);
            part.swap_dims(1, 2)
        };
        let scale = (depth as f64).powf(-0.5);
        Parts {
            query: part(0).mul_scalar(scale),
            key: part(1),
            value: part(2),
            scale,
        }
    }
}

impl Operation<1> for Attention {
    fn forward(&self, [qkv]: [CubeTensor; 1]) -> CubeTensor {
        let Parts {
            query, key, value, ..
        } = self.parts(qkv);
        let shares = softmax(query.matmul(key.transpose()));
        self.shares.get_or_init(|| shares.clone());
        let [batch, heads, tokens, depth] = value.dims();
        let out = shares.matmul(value).swap_dims(1, 2);
        primitive(out.reshape([batch, tokens, heads * depth]))
    }

    fn backward(
        &self,
        qkv: Option<CubeTensor>,
        dy: CubeTensor,
        _to_first: bool,
    ) -> [Option<CubeTensor>; 1] {
        let (Some(qkv), Some(shares)) = (qkv, self.shares.get()) else {
            return [None];
        };
        let Parts {
            query,
            key,
            value,
            scale,
        } = self.parts(qkv);
        let [batch, heads, tokens, depth] = value.dims();
        let dy: Tensor<3> = Tensor::from_primitive::<Cube>(dy);
        let dy = dy.reshape([batch, tokens, heads, depth]).swap_dims(1, 2);
        let to_value = shares.clone().transpose().matmul(dy.clone());
        let to_shares = dy.matmul(value.transpose());
        let to_scores = softmax_gradient(shares.clone(), to_shares);
        let to_key = to_scores.clone().transpose().matmul(query);
        let to_query = to_scores.matmul(key).mul_scalar(scale);
        let shape = [batch, tokens, 3, heads, depth];
        let all = Tensor::<5>::empty(shape, (&to_value.device(), to_value.dtype()));
        let parts = [to_query, to_key, to_value].into_iter().enumerate();
        let all = parts.fold(all, |all, (index, part)| {
            let place = [0..batch, 0..tokens, index..index + 1, 0..heads, 0..depth];
            all.slice_assign(place, part.swap_dims(1, 2).unsqueeze_dim(2))
        });
        [Some(primitive(all.reshape([
            batch,
            tokens,
            3 * heads * depth,
        ])))]
    }

    fn reads_input(&self) -> bool {
        true
    }
}

fn primitive(tensor: Tensor<3>) -> CubeTensor {
    let tensor = tensor.try_into_primitive::<Cube>();
    tensor.expect("a tensor on a GPU, without autodiff")
}
