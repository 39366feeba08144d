//! Convolution of channels-last images, with frequent operations after it: bias, residual, ReLU.

use burn::backend::flex::FlexTensor;
use burn::tensor::{Shape, Tensor};

use super::epilogue::EpilogueInputs;
use super::operation::{Operation, Saved, To, apply};
use super::tensor::{dims, filled, last, numbers};
use crate::KernelError;
use crate::cpu::{Conv2d, ConvMethod, Kernels, Rows};

/// Stride, padding and algorithm of a convolution.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ConvOptions {
    /// Vertical and horizontal stride of the window.
    pub stride: [usize; 2],
    /// Zeros above and below, and to the left and right of the image.
    pub padding: [usize; 2],
    /// Algorithm of the convolution.
    pub method: ConvMethod,
    /// Applies ReLU afterwards.
    pub relu: bool,
}

/// Computes `x ⊛ weight + bias + residual`, then ReLU if requested.
///
/// `x` is \[batch, height, width, in\], `weight` \[out, in, kernel height, kernel width\], `bias`
/// \[out\], `residual` and the result \[batch, out height, out width, out\].
///
/// # Panics
///
/// Panics if the shapes do not match, as Burn's own operations do.
pub fn conv2d(
    x: Tensor<4>,
    weight: Tensor<4>,
    bias: Option<Tensor<1>>,
    residual: Option<Tensor<4>>,
    options: ConvOptions,
) -> Tensor<4> {
    let (epilogue, others) = EpilogueInputs::new(weight, bias, residual, options.relu);
    let operation = Convolution { options, epilogue };
    apply(operation, x.into_dispatch(), others)
}

/// The operation. Its inputs are images, weight, and the optional bias and residual.
#[derive(Debug)]
struct Convolution {
    options: ConvOptions,
    epilogue: EpilogueInputs,
}

impl Convolution {
    fn shape(&self, x: &FlexTensor, weight: &FlexTensor) -> Result<Conv2d, KernelError> {
        let (&[batch, height, width, in_channels], &[out_channels, _, rows, columns]) =
            (dims(x), dims(weight))
        else {
            return Err(KernelError::Storage);
        };
        Ok(Conv2d {
            batch,
            height,
            width,
            in_channels,
            out_channels,
            kernel: [rows, columns],
            stride: self.options.stride,
            padding: self.options.padding,
        })
    }
}

/// Returns the shape of the matrix of all pixels by channels.
pub(super) fn pixels(tensor: &FlexTensor) -> Rows {
    let columns = last(tensor);
    Rows {
        rows: tensor.layout().num_elements() / columns.max(1),
        columns,
    }
}

impl Operation for Convolution {
    fn forward(&self, kernels: &Kernels, inputs: &[FlexTensor]) -> Result<FlexTensor, KernelError> {
        let [x, weight, rest @ ..] = inputs else {
            return Err(KernelError::Storage);
        };
        let shape = self.shape(x, weight)?;
        let [height, width] = shape.output_size()?;
        let out = Shape::new([shape.batch, height, width, shape.out_channels]);
        filled(out, |out| {
            let method = self.options.method;
            kernels.conv2d(&shape, method, numbers(x)?, numbers(weight)?, out)?;
            let rows = Rows {
                rows: out.len() / shape.out_channels.max(1),
                columns: shape.out_channels,
            };
            kernels.finish(rows, out, &self.epilogue.of(rest)?)
        })
    }

    fn backward(&self, saved: Saved, dy: FlexTensor, to: &mut To<'_>) -> Result<(), KernelError> {
        let kernels = to.kernels;
        let gradient = to.before_relu(self.options.relu, &saved, dy)?;
        let (x, weight) = (saved.input(0)?, saved.input(1)?);
        let (shape, method) = (self.shape(x, weight)?, self.options.method);
        let dy = numbers(&gradient)?;
        if self.epilogue.bias {
            let rows = pixels(&gradient);
            to.fill(2, Shape::new([rows.columns]), |sums| {
                kernels.bias_gradient(rows, dy, sums)
            })?;
        }
        to.fill(1, weight.layout().shape().clone(), |dw| {
            kernels.conv2d_weight_gradient(&shape, method, numbers(x)?, dy, dw)
        })?;
        to.fill(0, x.layout().shape().clone(), |dx| {
            kernels.conv2d_input_gradient(&shape, method, dy, numbers(weight)?, dx)
        })?;
        if let Some(residual) = self.epilogue.residual() {
            to.give(residual, gradient)?;
        }
        Ok(())
    }

    fn reads(&self, index: usize) -> bool {
        index < 2
    }

    fn reads_output(&self) -> bool {
        self.options.relu
    }
}
