//! Max-pooling of channels-last images.

use burn::backend::flex::FlexTensor;
use burn::tensor::{Shape, Tensor};

use super::operation::{Operation, Saved, To, apply, exactly};
use super::tensor::{dims, filled, numbers};
use crate::KernelError;
use crate::cpu::{Kernels, MaxPool2d};

/// Window, stride and padding of a pooling.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PoolOptions {
    /// Rows and columns of the window.
    pub kernel: [usize; 2],
    /// Vertical and horizontal stride of the window.
    pub stride: [usize; 2],
    /// Pixels around the image that never win; at most half a window.
    pub padding: [usize; 2],
}

/// Returns the largest value of every window; `x` and the result are \[batch, height, width,
/// channels\].
///
/// # Panics
///
/// Panics if the windows do not fit into the images, as Burn's own operations do.
pub fn max_pool2d(x: Tensor<4>, options: PoolOptions) -> Tensor<4> {
    apply(MaxPool { options }, x.into_dispatch(), vec![])
}

#[derive(Debug)]
struct MaxPool {
    options: PoolOptions,
}

impl MaxPool {
    fn shape(&self, x: &FlexTensor) -> Result<MaxPool2d, KernelError> {
        let &[batch, height, width, channels] = dims(x) else {
            return Err(KernelError::Storage);
        };
        let PoolOptions {
            kernel,
            stride,
            padding,
        } = self.options;
        Ok(MaxPool2d {
            batch,
            height,
            width,
            channels,
            kernel,
            stride,
            padding,
        })
    }
}

impl Operation for MaxPool {
    fn forward(&self, kernels: &Kernels, inputs: &[FlexTensor]) -> Result<FlexTensor, KernelError> {
        let [x] = exactly(inputs)?;
        let shape = self.shape(x)?;
        let [height, width] = shape.output_size()?;
        let out = Shape::new([shape.batch, height, width, shape.channels]);
        filled(out, |out| kernels.max_pool2d(&shape, numbers(x)?, out))
    }

    fn backward(&self, saved: Saved, dy: FlexTensor, to: &mut To<'_>) -> Result<(), KernelError> {
        let kernels = to.kernels;
        let (x, y) = (saved.input(0)?, saved.output()?);
        to.fill(0, x.layout().shape().clone(), |dx| {
            let (shape, dy) = (self.shape(x)?, numbers(&dy)?);
            kernels.max_pool2d_gradient(&shape, numbers(x)?, numbers(y)?, dy, dx)
        })
    }

    fn reads(&self, _index: usize) -> bool {
        true
    }

    fn reads_output(&self) -> bool {
        true
    }
}
