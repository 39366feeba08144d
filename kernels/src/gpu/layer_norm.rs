//! Layer normalization over the last dimension.

use std::sync::{Arc, OnceLock};

use burn::tensor::Tensor;
use burn_cubecl::kernel::into_contiguous;
use burn_cubecl::tensor::CubeTensor;

use super::matrix::Matrix;
use super::operation::{BackwardInput, Operation, apply_with};
use super::tokens;

/// Normalizes each row of `x`, \[…, features\], by its own mean and variance; `weight` and `bias`
/// are \[features\]. Sums are in `f32` whatever the type of `x`, and so are the kept moments.
/// For a device that [`super::is_gpu`], and at least one value.
///
/// # Panics
/// When the shapes do not fit together, as Burn's own operations do.
pub fn layer_norm<const D: usize>(
    x: Tensor<D>,
    [weight, bias]: [Tensor<1>; 2],
    epsilon: f64,
) -> Tensor<D> {
    let features = x.dims().last().copied().unwrap_or(0);
    assert!(
        x.shape().num_elements() > 0 && [weight.dims(), bias.dims()] == [[features]; 2],
        "layer normalization of {:?} by weights {:?} and {:?}",
        x.dims(),
        weight.dims(),
        bias.dims()
    );
    let layer = LayerNorm {
        epsilon: epsilon as f32,
        kept: OnceLock::new(),
    };
    apply_with(Arc::new(layer), x, [weight, bias])
}

#[derive(Debug)]
struct LayerNorm {
    epsilon: f32,
    /// Set by the first forward pass.
    kept: OnceLock<Kept>,
}

/// The tensors that backward needs.
#[derive(Debug)]
struct Kept {
    weight: CubeTensor,
    /// Mean and inverse deviation of every row, \[rows, 2\].
    moments: CubeTensor,
}

impl Operation<3> for LayerNorm {
    fn forward(&self, [x, weight, bias]: [CubeTensor; 3]) -> CubeTensor {
        let (x, [weight, bias]) = (Matrix::new(x), [weight, bias].map(into_contiguous));
        let (out, moments) = tokens::normalise(&x, [&weight, &bias], self.epsilon);
        self.kept.get_or_init(|| Kept { weight, moments });
        out.into_tensor()
    }

    fn backward(
        &self,
        BackwardInput { x, dy, to_first }: BackwardInput,
    ) -> [Option<CubeTensor>; 3] {
        let (Some(x), Some(kept)) = (x, self.kept.get()) else {
            return [const { None }; 3];
        };
        let Kept { weight, moments } = kept;
        let (x, dy) = (Matrix::new(x), Matrix::new(dy));
        let [to_weight, to_bias] = tokens::parameter_gradients(&x, &dy, moments);
        let input = to_first.then(|plus| {
            let plus = plus.map(Matrix::new);
            tokens::input_gradient(&x, &dy, weight, moments, plus.as_ref())
        });
        [
            input.map(Matrix::into_tensor),
            Some(to_weight),
            Some(to_bias),
        ]
    }

    fn reads_input(&self) -> bool {
        true
    }

    fn adds_up(&self) -> bool {
        true
    }
}
