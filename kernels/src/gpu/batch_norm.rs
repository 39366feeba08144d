//! Batch normalization with an optional ReLU.

use std::sync::{Arc, OnceLock};

use burn::backend::Cube;
use burn::tensor::{FloatDType, Tensor};
use burn_cubecl::kernel::into_contiguous;
use burn_cubecl::tensor::CubeTensor;

use super::channels::{self, Then, forward};
use super::dropout::Drops;
use super::matrix::{Matrix, primitive, row_of};
use super::operation::{BackwardInput, Operation, apply_with, apply_with_plus};
use crate::gpu::ThenNorm;

/// Mean and variance of each channel in a batch, in `f32`.
#[derive(Debug)]
pub struct BatchMoments {
    /// Rows as in [`forward`].
    lines: CubeTensor,
}

impl BatchMoments {
    /// Returns the means, \[channels\].
    pub fn mean(&self) -> Tensor<1> {
        Tensor::from_primitive::<Cube>(row_of(&self.lines, forward::MEAN))
    }

    /// Returns the biased variances (divided by the number of values), \[channels\].
    pub fn variance(&self) -> Tensor<1> {
        Tensor::from_primitive::<Cube>(row_of(&self.lines, forward::VARIANCE))
    }

    /// Updates a running mean and variance, \[channels\].
    ///
    /// The result is `1 - momentum` of the old values plus `momentum` of these, with the variances
    /// times `unbias`.
    ///
    /// # Panics
    ///
    /// Panics if the shapes do not match, or if a tensor is not on the GPU.
    pub fn running(
        &self,
        [mean, variance]: [Tensor<1>; 2],
        momentum: f64,
        unbias: f64,
    ) -> [Tensor<1>; 2] {
        let old = [mean, variance].map(|tensor| primitive(tensor.cast(FloatDType::F32)));
        channels::running(&self.lines, old, momentum as f32, unbias as f32)
            .map(Tensor::from_primitive::<Cube>)
    }
}

/// # Panics
///
/// Panics if the addend has another shape or type than `x`.
fn check(then: &ThenNorm, x: &Tensor<4>) {
    if let Some(plus) = &then.plus {
        let fits = plus.dims() == x.dims() && plus.dtype() == x.dtype();
        assert!(fits, "a sum of {:?} and {:?}", x.dims(), plus.dims());
    }
}

/// Normalises `x`, \[batch, channels, height, width\], by mean and variance of this batch.
///
/// `weight` and `bias` are \[channels\]. Sums are in `f32` for any type of `x`. Requires a device
/// for which [`super::is_gpu`] is true, and at least one value.
///
/// # Panics
///
/// Panics if the shapes do not match, as Burn's own operations do.
pub fn batch_norm_train(
    x: Tensor<4>,
    [weight, bias]: [Tensor<1>; 2],
    epsilon: f64,
    then: ThenNorm,
) -> (Tensor<4>, BatchMoments) {
    check(&then, &x);
    let [_, channels, _, _] = x.dims();
    assert!(
        x.shape().num_elements() > 0 && [weight.dims(), bias.dims()] == [[channels]; 2],
        "batch normalization of {:?} by weights {:?} and {:?}",
        x.dims(),
        weight.dims(),
        bias.dims()
    );
    let drops = (then.drop > 0.0).then(|| Drops::draw(then.drop, &x.device().inner()));
    let layer = Arc::new(BatchNorm {
        epsilon: epsilon as f32,
        then: Then {
            relu: then.relu,
            drops,
        },
        lines: OnceLock::new(),
    });
    let output = match then.plus {
        Some(plus) => apply_with_plus(layer.clone(), x, [weight, bias], plus),
        None => apply_with(layer.clone(), x, [weight, bias]),
    };
    let lines = layer.lines.get().expect("the layer has been computed");
    let moments = BatchMoments {
        lines: lines.clone(),
    };
    (output, moments)
}

/// Normalises `x` by a given mean and variance, as in evaluation.
///
/// `x` is \[batch, channels, height, width\]; all other tensors are \[channels\] in `f32`. Has no
/// autodiff and drops nothing; otherwise like [`batch_norm_train`].
///
/// # Panics
///
/// Panics if the shapes do not match, as Burn's own operations do.
pub fn batch_norm(
    x: Tensor<4>,
    [weight, bias]: [Tensor<1>; 2],
    [mean, variance]: [Tensor<1>; 2],
    epsilon: f64,
    then: ThenNorm,
) -> Tensor<4> {
    check(&then, &x);
    let [_, channels, _, _] = x.dims();
    let scale = weight / (variance.clone() + epsilon).sqrt();
    let offset = bias - mean.clone() * scale.clone();
    let lines = Tensor::stack::<2>(vec![mean, variance, scale, offset], 0);
    assert!(
        x.shape().num_elements() > 0 && lines.dims() == [forward::ROWS, channels],
        "batch normalization of {:?} by weights and statistics {:?}",
        x.dims(),
        lines.dims()
    );
    let primitive = "not tracked, and on a GPU";
    let matrix = |x: Tensor<4>| Matrix::of_images(x.try_into_primitive::<Cube>().expect(primitive));
    let (x, plus) = (matrix(x), then.plus.map(matrix));
    let lines = lines.cast(FloatDType::F32).try_into_primitive::<Cube>();
    let lines = into_contiguous(lines.expect(primitive));
    let then = Then {
        relu: then.relu,
        drops: None,
    };
    let out = channels::normalise(&x, &lines, &then, plus.as_ref());
    Tensor::from_primitive::<Cube>(out.into_images())
}

#[derive(Debug)]
struct BatchNorm {
    epsilon: f32,
    then: Then,
    /// Set by the first forward pass.
    lines: OnceLock<CubeTensor>,
}

impl BatchNorm {
    fn normalised(
        &self,
        [x, weight, bias]: [CubeTensor; 3],
        plus: Option<CubeTensor>,
    ) -> CubeTensor {
        let x = Matrix::of_images(x);
        let plus = plus.map(Matrix::of_images);
        let lines = self.lines.get_or_init(|| {
            let parameters = [weight, bias].map(into_contiguous);
            channels::moments(&x, parameters, self.epsilon)
        });
        channels::normalise(&x, lines, &self.then, plus.as_ref()).into_images()
    }

    /// Computes the gradients of the input, the weight and the bias.
    fn gradients(
        &self,
        BackwardInput { x, dy, to_first }: BackwardInput,
    ) -> [Option<CubeTensor>; 3] {
        let (Some(x), Some(lines)) = (x, self.lines.get()) else {
            return [const { None }; 3];
        };
        let (x, dy) = (Matrix::of_images(x), Matrix::of_images(dy));
        let sums = channels::gradient_sums(&x, &dy, lines, self.epsilon, &self.then);
        let input = to_first.then(|plus| {
            let plus = plus.map(Matrix::of_images);
            let dx = channels::input_gradient(&x, &dy, lines, &sums, &self.then, plus.as_ref());
            dx.into_images()
        });
        [input, Some(sums.weight), Some(sums.bias)]
    }
}

impl Operation<3> for BatchNorm {
    fn forward(&self, inputs: [CubeTensor; 3]) -> CubeTensor {
        self.normalised(inputs, None)
    }

    fn backward(&self, given: BackwardInput) -> [Option<CubeTensor>; 3] {
        self.gradients(given)
    }

    fn reads_input(&self) -> bool {
        true
    }

    fn adds_up(&self) -> bool {
        true
    }
}

/// The variant with an addend to the result.
impl Operation<4> for BatchNorm {
    fn forward(&self, [x, weight, bias, plus]: [CubeTensor; 4]) -> CubeTensor {
        self.normalised([x, weight, bias], Some(plus))
    }

    fn backward(&self, given: BackwardInput) -> [Option<CubeTensor>; 4] {
        let dy = given.dy.clone();
        let [input, weight, bias] = self.gradients(given);
        [input, weight, bias, Some(dy)]
    }

    fn reads_input(&self) -> bool {
        true
    }

    fn adds_up(&self) -> bool {
        true
    }
}
