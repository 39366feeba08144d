//! Two-dimensional convolution of NHWC images, forward and both gradients.
//!
//! 3×3 windows with stride 1 use Winograd's algorithm, which needs a quarter of the
//! multiplications. 1×1 windows with stride 1 are a plain matrix product. Everything else is a
//! direct implicit matrix product.

mod direct;
mod direct_gradient;
mod shape;
mod weights;
mod winograd;
mod winograd_gradient;

pub use shape::{Conv2d, ConvMethod};

use crate::cpu::kernels::Kernels;
use crate::cpu::matmul::Matmul;
use crate::error::{KernelError, length};
use shape::Route;

const OP: &str = "conv2d";

impl Kernels {
    /// Computes `output = input ⊛ weight`.
    ///
    /// `input` is \[batch, height, width, in\], `weight` \[out, in, kernel height, kernel width\],
    /// and `output` \[batch, out height, out width, out\]; see [`Conv2d::output_size`].
    ///
    /// # Errors
    ///
    /// Fails if the shape has no output, if the length of a slice does not match, or if the method
    /// does not cover the shape.
    pub fn conv2d(
        &self,
        shape: &Conv2d,
        method: ConvMethod,
        input: &[f32],
        weight: &[f32],
        output: &mut [f32],
    ) -> Result<(), KernelError> {
        let sizes = shape.sizes()?;
        length(OP, "input", input.len(), sizes.input)?;
        length(OP, "weight", weight.len(), sizes.weight)?;
        length(OP, "output", output.len(), sizes.output)?;
        match shape.route(method)? {
            Route::Pointwise => {
                let [rows, depth, columns] = shape.pointwise();
                let product = Matmul {
                    rows,
                    columns,
                    depth,
                    left_transposed: false,
                    right_transposed: true,
                };
                self.matmul(&product, input, weight, output)?;
            }
            Route::Winograd => {
                let spread = weights::by_output(self, shape, weight);
                winograd::forward(self, &shape.geometry()?, spread, false, input, output);
            }
            Route::Direct => {
                let spread = weights::by_output(self, shape, weight);
                direct::forward(
                    self,
                    shape,
                    &shape.geometry()?,
                    spread,
                    false,
                    input,
                    output,
                );
            }
        }
        Ok(())
    }

    /// Computes the gradient with respect to the input.
    ///
    /// `gradient` has the shape of the output, `input_gradient` that of the input; both as in
    /// [`Kernels::conv2d`].
    ///
    /// # Errors
    ///
    /// Returns the errors of [`Kernels::conv2d`].
    pub fn conv2d_input_gradient(
        &self,
        shape: &Conv2d,
        method: ConvMethod,
        gradient: &[f32],
        weight: &[f32],
        input_gradient: &mut [f32],
    ) -> Result<(), KernelError> {
        let sizes = shape.sizes()?;
        length(OP, "gradient", gradient.len(), sizes.output)?;
        length(OP, "weight", weight.len(), sizes.weight)?;
        length(OP, "input_gradient", input_gradient.len(), sizes.input)?;
        match (shape.route(method)?, shape.mirrored()?) {
            (Route::Pointwise, _) => {
                let [rows, depth, columns] = shape.pointwise();
                let product = Matmul {
                    rows,
                    columns: depth,
                    depth: columns,
                    left_transposed: false,
                    right_transposed: false,
                };
                self.matmul(&product, gradient, weight, input_gradient)?;
            }
            // With stride 1 it is the convolution of the gradient with the mirrored taps.
            (Route::Winograd, Some((_, geometry))) => {
                let spread = weights::by_input(self, shape, weight);
                winograd::forward(self, &geometry, spread, true, gradient, input_gradient);
            }
            (_, Some((mirror, geometry))) => {
                let spread = weights::by_input(self, shape, weight);
                direct::forward(
                    self,
                    &mirror,
                    &geometry,
                    spread,
                    true,
                    gradient,
                    input_gradient,
                );
            }
            (_, None) => {
                let spread = weights::by_input(self, shape, weight);
                let geometry = shape.geometry()?;
                direct_gradient::input(self, shape, &geometry, spread, gradient, input_gradient);
            }
        }
        Ok(())
    }

    /// Computes the gradient with respect to the weight.
    ///
    /// `gradient` has the shape of the output, `weight_gradient` that of the weight; both as in
    /// [`Kernels::conv2d`].
    ///
    /// # Errors
    ///
    /// Returns the errors of [`Kernels::conv2d`].
    pub fn conv2d_weight_gradient(
        &self,
        shape: &Conv2d,
        method: ConvMethod,
        input: &[f32],
        gradient: &[f32],
        weight_gradient: &mut [f32],
    ) -> Result<(), KernelError> {
        let sizes = shape.sizes()?;
        length(OP, "input", input.len(), sizes.input)?;
        length(OP, "gradient", gradient.len(), sizes.output)?;
        length(OP, "weight_gradient", weight_gradient.len(), sizes.weight)?;
        match shape.route(method)? {
            Route::Pointwise => {
                let [rows, depth, columns] = shape.pointwise();
                let product = Matmul {
                    rows: columns,
                    columns: depth,
                    depth: rows,
                    left_transposed: true,
                    right_transposed: false,
                };
                self.matmul(&product, gradient, input, weight_gradient)?;
            }
            Route::Winograd => {
                let geometry = shape.geometry()?;
                winograd_gradient::weight(self, &geometry, input, gradient, weight_gradient);
            }
            Route::Direct => {
                let geometry = shape.geometry()?;
                direct_gradient::weight(self, shape, &geometry, input, gradient, weight_gradient);
            }
        }
        Ok(())
    }
}
