//! Max-pooling of NHWC images.

use crate::cpu::kernels::Kernels;
use crate::cpu::parallel::{Shared, each};
use crate::cpu::vector::max_pool::Windows;
use crate::error::{KernelError, length, places, volume};

const OP: &str = "max-pool";

/// Shape of a two-dimensional max-pooling.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct MaxPool2d {
    /// Number of images.
    pub batch: usize,
    /// Rows of the input.
    pub height: usize,
    /// Columns of the input.
    pub width: usize,
    /// Channels.
    pub channels: usize,
    /// Rows and columns of the window.
    pub kernel: [usize; 2],
    /// Vertical and horizontal stride of the window.
    pub stride: [usize; 2],
    /// Pixels around the image that never win; at most half a window.
    pub padding: [usize; 2],
}

impl MaxPool2d {
    /// Returns the rows and columns of the output.
    ///
    /// # Errors
    ///
    /// Fails if a size is zero, if the window is larger than the padded image, or if the padding is
    /// more than half a window.
    pub fn output_size(&self) -> Result<[usize; 2], KernelError> {
        let side = |size: usize, axis: usize| {
            let window = [self.kernel[axis], self.stride[axis], self.padding[axis]];
            places(OP, size, window, self.kernel[axis] / 2)
        };
        Ok([side(self.height, 0)?, side(self.width, 1)?])
    }

    /// Returns the windows of one image, and the number of elements of all inputs and of all
    /// outputs.
    fn sizes(&self) -> Result<(Windows, usize, usize), KernelError> {
        let [rows, columns] = self.output_size()?;
        let (batch, channels) = (("batch", self.batch), ("channels", self.channels));
        let (height, width) = (("height", self.height), ("width", self.width));
        let windows = Windows {
            size: [self.height, self.width],
            out: [rows, columns],
            kernel: self.kernel,
            stride: self.stride,
            padding: self.padding,
            channels: self.channels,
        };
        let input = volume(OP, &[batch, height, width, channels])?;
        let output = volume(OP, &[batch, ("height", rows), ("width", columns), channels])?;
        Ok((windows, input, output))
    }
}

impl Kernels {
    /// The largest value of every window; NaN if one of them is NaN.
    ///
    /// # Errors
    ///
    /// A shape without output, slices whose lengths do not match it.
    pub fn max_pool2d(
        &self,
        shape: &MaxPool2d,
        input: &[f32],
        output: &mut [f32],
    ) -> Result<(), KernelError> {
        let (windows, elements, outputs) = shape.sizes()?;
        length(OP, "input", input.len(), elements)?;
        length(OP, "output", output.len(), outputs)?;
        let output = Shared::new(output);
        each(shape.batch, |index| {
            // SAFETY: every index has images of its own.
            unsafe {
                let x = input.as_ptr().add(index * (elements / shape.batch));
                let y = output.at(index * (outputs / shape.batch));
                (self.table.max_pool)(&windows, x, y);
            }
        });
        Ok(())
    }

    /// The gradient of [`Kernels::max_pool2d`]. The gradient of a window goes to its first pixel,
    /// by rows, that has the largest value.
    ///
    /// # Errors
    ///
    /// As for [`Kernels::max_pool2d`].
    pub fn max_pool2d_gradient(
        &self,
        shape: &MaxPool2d,
        input: &[f32],
        output: &[f32],
        gradient: &[f32],
        input_gradient: &mut [f32],
    ) -> Result<(), KernelError> {
        let (windows, elements, outputs) = shape.sizes()?;
        length(OP, "input", input.len(), elements)?;
        length(OP, "output", output.len(), outputs)?;
        length(OP, "gradient", gradient.len(), outputs)?;
        length(OP, "input_gradient", input_gradient.len(), elements)?;
        let (image, out) = (elements / shape.batch, outputs / shape.batch);
        let target = Shared::new(input_gradient);
        each(shape.batch, |index| {
            // SAFETY: every index has images of its own.
            unsafe {
                let result = target.slice(index * image..(index + 1) * image);
                if !windows.partition() {
                    result.fill(0.0);
                }
                let x = input.as_ptr().add(index * image);
                let y = output.as_ptr().add(index * out);
                let dy = gradient.as_ptr().add(index * out);
                (self.table.max_pool_gradient)(&windows, x, y, dy, result.as_mut_ptr());
            }
        });
        Ok(())
    }
}
