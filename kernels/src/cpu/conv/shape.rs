//! Shapes of convolutions and the choice of algorithm.

use super::OP;
use crate::error::{KernelError, places, volume};

/// Shape of a two-dimensional convolution.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Conv2d {
    /// Number of images.
    pub batch: usize,
    /// Rows of the input.
    pub height: usize,
    /// Columns of the input.
    pub width: usize,
    /// Channels of the input.
    pub in_channels: usize,
    /// Channels of the output.
    pub out_channels: usize,
    /// Rows and columns of the window.
    pub kernel: [usize; 2],
    /// Vertical and horizontal stride of the window.
    pub stride: [usize; 2],
    /// Zeros above and below, and to the left and right of the image.
    pub padding: [usize; 2],
}

/// Algorithm of a convolution.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum ConvMethod {
    /// Winograd if it is faster, else direct.
    #[default]
    Auto,
    /// Direct: rounding errors as small as those of a matrix product.
    Direct,
    /// Winograd: errors up to about 1e-5 of the largest value; only for 3×3 windows with stride 1.
    Winograd,
}

/// The code that computes a convolution.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Route {
    Pointwise,
    Direct,
    Winograd,
}

/// Number of elements of the three tensors.
pub(super) struct Sizes {
    pub input: usize,
    pub weight: usize,
    pub output: usize,
}

/// Sizes for the inner code: images, input, output and padding.
#[derive(Debug, Clone, Copy)]
pub(super) struct Geometry {
    pub batch: usize,
    pub height: usize,
    pub width: usize,
    pub input: usize,
    pub out_height: usize,
    pub out_width: usize,
    pub output: usize,
    pub padding: [usize; 2],
}

impl Conv2d {
    /// Returns the rows and columns of the output.
    ///
    /// # Errors
    ///
    /// Fails if a size is zero, or if the window is larger than the padded image.
    pub fn output_size(&self) -> Result<[usize; 2], KernelError> {
        let side = |size: usize, axis: usize| {
            let window = [self.kernel[axis], self.stride[axis], self.padding[axis]];
            places(OP, size, window, usize::MAX)
        };
        Ok([side(self.height, 0)?, side(self.width, 1)?])
    }

    pub(super) fn sizes(&self) -> Result<Sizes, KernelError> {
        let (batch, input) = (("batch", self.batch), ("in_channels", self.in_channels));
        let output = ("out_channels", self.out_channels);
        let [rows, columns] = self.output_size()?;
        // The scratch memory must be possible too.
        volume(
            OP,
            &[
                ("height", self.height.saturating_add(2 * self.padding[0])),
                ("width", self.width.saturating_add(2 * self.padding[1])),
                input,
            ],
        )?;
        Ok(Sizes {
            input: volume(
                OP,
                &[batch, ("height", self.height), ("width", self.width), input],
            )?,
            weight: volume(
                OP,
                &[
                    output,
                    input,
                    ("kernel", self.kernel[0]),
                    ("kernel", self.kernel[1]),
                ],
            )?,
            output: volume(OP, &[batch, ("height", rows), ("width", columns), output])?,
        })
    }

    pub(super) fn taps(&self) -> usize {
        self.kernel[0] * self.kernel[1]
    }

    pub(super) fn geometry(&self) -> Result<Geometry, KernelError> {
        let [out_height, out_width] = self.output_size()?;
        Ok(Geometry {
            batch: self.batch,
            height: self.height,
            width: self.width,
            input: self.in_channels,
            out_height,
            out_width,
            output: self.out_channels,
            padding: self.padding,
        })
    }

    /// The convolution that computes the input's gradient from the output's, if there is one: the
    /// stride must be 1 and the padding smaller than the window.
    pub(super) fn mirrored(&self) -> Result<Option<(Self, Geometry)>, KernelError> {
        let fits = |axis: usize| self.stride[axis] == 1 && self.padding[axis] < self.kernel[axis];
        if !fits(0) || !fits(1) {
            return Ok(None);
        }
        let [height, width] = self.output_size()?;
        let mirror = Self {
            height,
            width,
            in_channels: self.out_channels,
            out_channels: self.in_channels,
            padding: [0, 1].map(|axis| self.kernel[axis] - 1 - self.padding[axis]),
            ..*self
        };
        Ok(Some((mirror, mirror.geometry()?)))
    }

    /// Rows, depth and columns of the matrix product for a 1×1 window.
    pub(super) fn pointwise(&self) -> [usize; 3] {
        let rows = self.batch * self.height * self.width;
        [rows, self.in_channels, self.out_channels]
    }

    pub(super) fn route(&self, method: ConvMethod) -> Result<Route, KernelError> {
        let winograd = self.kernel == [3, 3] && self.stride == [1, 1] && self.padding <= [2, 2];
        let winograd = winograd && self.padding[1] <= 2;
        if self.kernel == [1, 1] && self.stride == [1, 1] && self.padding == [0, 0] {
            return match method {
                ConvMethod::Winograd => Err(KernelError::NotWinograd { op: OP }),
                _ => Ok(Route::Pointwise),
            };
        }
        match method {
            ConvMethod::Direct => Ok(Route::Direct),
            ConvMethod::Winograd if winograd => Ok(Route::Winograd),
            ConvMethod::Winograd => Err(KernelError::NotWinograd { op: OP }),
            ConvMethod::Auto if winograd && self.winograd_pays()? => Ok(Route::Winograd),
            ConvMethod::Auto => Ok(Route::Direct),
        }
    }

    /// With few channels the transforms do not pay off; small images leave the tiles empty.
    fn winograd_pays(&self) -> Result<bool, KernelError> {
        let [rows, columns] = self.output_size()?;
        let tiled = rows.next_multiple_of(4) * columns.next_multiple_of(4);
        let filled = rows * columns * 3 >= tiled * 2;
        Ok(self.in_channels >= 16 && self.out_channels >= 16 && filled)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHAPE: Conv2d = Conv2d {
        batch: 2,
        height: 7,
        width: 9,
        in_channels: 16,
        out_channels: 32,
        kernel: [3, 3],
        stride: [1, 1],
        padding: [1, 1],
    };

    #[test]
    fn output_sizes_follow_window_stride_and_padding() {
        assert_eq!(SHAPE.output_size(), Ok([7, 9]));
        let strided = Conv2d {
            stride: [2, 3],
            padding: [0, 2],
            ..SHAPE
        };
        assert_eq!(strided.output_size(), Ok([3, 4]));
    }

    #[test]
    fn what_has_no_output_is_an_error() {
        let shape = |kernel, stride| Conv2d {
            kernel,
            stride,
            ..SHAPE
        };
        assert!(matches!(
            shape([10, 3], [1, 1]).output_size(),
            Err(KernelError::Window {
                window: 10,
                padded: 9,
                ..
            })
        ));
        assert!(matches!(
            shape([0, 3], [1, 1]).sizes(),
            Err(KernelError::Zero { .. })
        ));
        assert!(matches!(
            shape([3, 3], [1, 0]).sizes(),
            Err(KernelError::Zero { .. })
        ));
        let huge = Conv2d {
            batch: usize::MAX / 2,
            ..SHAPE
        };
        assert!(matches!(huge.sizes(), Err(KernelError::TooLarge { .. })));
        let huge = Conv2d {
            padding: [usize::MAX / 2, 1],
            ..SHAPE
        };
        assert!(huge.sizes().is_err());
    }

    #[test]
    fn winograd_is_chosen_where_it_pays_and_nowhere_else() {
        assert_eq!(SHAPE.route(ConvMethod::Auto), Ok(Route::Direct));
        let full = Conv2d {
            width: 8,
            height: 8,
            ..SHAPE
        };
        assert_eq!(full.route(ConvMethod::Auto), Ok(Route::Winograd));
        assert_eq!(full.route(ConvMethod::Direct), Ok(Route::Direct));
        let few = Conv2d {
            in_channels: 3,
            ..full
        };
        assert_eq!(few.route(ConvMethod::Auto), Ok(Route::Direct));
        assert_eq!(few.route(ConvMethod::Winograd), Ok(Route::Winograd));
        let strided = Conv2d {
            stride: [2, 2],
            ..full
        };
        assert!(strided.route(ConvMethod::Winograd).is_err());
    }
}
