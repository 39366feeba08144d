//! Linear layers as convolutions of images of one pixel each.

use std::sync::Arc;

use burn::tensor::{Shape, Tensor};
use burn_cubecl::kernel::into_contiguous;
use burn_cubecl::ops::reshape;
use burn_cubecl::tensor::CubeTensor;

use super::super::column_sums::ColumnSums;
use super::super::matrix::{Matrix, primitive};
use super::ConvOptions;
use super::arrange::Matrices;
use super::geometry::Geometry;
use super::launch::Convolution;
use super::operation::{Addends, Product, apply};

/// Computes `x · weight + bias + plus` on tensor cores, if they support it.
///
/// They support `x` in f32, f16 or bf16 on a GPU with the instructions; the result is `None`
/// otherwise. `x` is \[…, in\], `weight` \[in, out\] as in Burn's layer, `bias` \[out\], `plus` and
/// the result \[…, out\]. `weight` may be in f32: it is rounded to the type of `x`, and its
/// gradient is not. Products of f32 numbers use sixteen bits. Sums are in f32, and so is the bias.
///
/// # Panics
///
/// Panics unless [`crate::gpu::is_gpu`] is true for the tensors' device.
pub fn linear<const D: usize>(
    x: &Tensor<D>,
    weight: &Tensor<2>,
    bias: Option<&Tensor<1>>,
    plus: Option<Tensor<D>>,
) -> Option<Tensor<D>> {
    let [inputs, outputs] = weight.dims();
    let dims = x.dims();
    let mut shape = dims;
    *shape.last_mut()? = outputs;
    let (&columns, before) = dims.split_last()?;
    if columns != inputs {
        return None;
    }
    let rows = before.iter().product();
    let inner_x = primitive(x.clone().without_autodiff());
    let inner_weight = primitive(weight.clone().without_autodiff());
    let convolution = |inputs, outputs| {
        let geometry = Geometry::new([rows, inputs, 1, 1], [outputs, inputs, 1, 1], PIXEL)?;
        Convolution::new(&inner_x, &inner_weight, geometry)
    };
    let product = Linear {
        sizes: [inputs, outputs],
        shape: x.shape(),
        forward: convolution(inputs, outputs)?,
        back: convolution(outputs, inputs)?,
    };
    Some(apply(Arc::new(product), x, weight, bias, (plus, shape)))
}

/// A window of one pixel.
const PIXEL: ConvOptions = ConvOptions {
    stride: [1, 1],
    padding: [0, 0],
};

/// A linear layer.
#[derive(Debug)]
struct Linear {
    /// Input and output features.
    sizes: [usize; 2],
    /// The shape of the input.
    shape: Shape,
    forward: Convolution,
    /// From output features to input features. The gradient of its weight is \[in, out\] in memory,
    /// as the layer's weight is.
    back: Convolution,
}

/// \[…, features\] as images of one pixel each. A tensor that is not contiguous, such as one with
/// padded rows, is copied first: a copy of one-pixel images would not use vectors.
fn pixels(x: CubeTensor) -> CubeTensor {
    let x = into_contiguous(x);
    let features = x.meta.shape().iter().last().copied().unwrap_or(1);
    let rows = x.meta.shape().num_elements() / features.max(1);
    reshape(x, Shape::new([rows, features, 1, 1]))
}

impl Linear {
    /// The pixels of images as the last dimension of a tensor with the other dimensions of the
    /// input.
    fn unpixel(&self, images: CubeTensor, features: usize) -> CubeTensor {
        let before = self.shape.num_dims().saturating_sub(1);
        let before = self.shape.iter().copied().take(before);
        let shape: Vec<usize> = before.chain([features]).collect();
        reshape(images, Shape::from(shape))
    }
}

impl Product for Linear {
    fn forward(&self, input: CubeTensor, weight: CubeTensor, addends: Addends) -> CubeTensor {
        let weight = self
            .forward
            .arranged(weight, &self.forward.result, |sizes| Matrices {
                count: 1,
                rows: sizes.inputs,
                columns: sizes.outputs,
            });
        let addends = Addends {
            plus: addends.plus.map(pixels),
            ..addends
        };
        let out = self.forward.convolve(pixels(input), weight, addends);
        self.unpixel(out, self.sizes[1])
    }

    fn factor(&self, dy: CubeTensor) -> CubeTensor {
        self.forward.factor_of_result(pixels(dy))
    }

    fn gradient_of_input(
        &self,
        dy: CubeTensor,
        weight: CubeTensor,
        plus: Option<CubeTensor>,
    ) -> CubeTensor {
        // It is in the right order already: its numbers are matrices of one column each.
        let weight = self
            .forward
            .arranged(weight, &self.forward.images, |sizes| Matrices {
                count: sizes.inputs,
                rows: sizes.outputs,
                columns: 1,
            });
        let plus = plus.map(pixels);
        let out = self.forward.convolve_back(dy, weight, plus);
        self.unpixel(out, self.sizes[0])
    }

    fn gradients_of_parameters(
        &self,
        input: CubeTensor,
        dy: CubeTensor,
        for_bias: Option<CubeTensor>,
    ) -> (CubeTensor, Option<CubeTensor>) {
        let input = self.forward.factor_of_images(pixels(input));
        let (weight, bias) = self.back.weigh([dy, input], for_bias.map(pixels));
        (reshape(weight, Shape::new(self.sizes)), bias)
    }

    fn gradient_of_bias(&self, dy: CubeTensor) -> CubeTensor {
        ColumnSums::of(&Matrix::new(dy)).add_up()
    }
}
