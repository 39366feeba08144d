//! Options of GPU operations. These types exist with and without the operations.

use burn::tensor::{Int, Tensor};

/// Stride and padding of a convolution.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConvOptions {
    /// Vertical and horizontal stride of the window.
    pub stride: [usize; 2],
    /// Zeros above and below, and to the left and right of the image.
    pub padding: [usize; 2],
}

/// Window, stride and padding of a max-pooling.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PoolOptions {
    /// Height and width of the window.
    pub window: [usize; 2],
    /// Vertical and horizontal stride of the window.
    pub stride: [usize; 2],
    /// Empty places above and below, and to the left and right of the image.
    pub padding: [usize; 2],
}

/// Operations after a batch normalization.
#[derive(Clone, Debug, Default)]
pub struct ThenNorm {
    /// Applies ReLU.
    pub relu: bool,
    /// Probability of dropout after that, as in [`crate::ops::dropout()`]; below 1.
    pub drop: f64,
    /// Added after that; has the same shape and type.
    pub plus: Option<Tensor<4>>,
}

/// Facts about [`StoredImages`](super::StoredImages) beside their pixels.
#[derive(Clone, Debug)]
pub struct ImageFacts<'a> {
    /// Class of each image.
    pub labels: Tensor<1, Int>,
    /// Scale and offset of each channel: a byte becomes `byte * scale + offset`.
    pub lines: &'a [(f32, f32)],
    /// Rows and columns.
    pub size: [usize; 2],
    /// Fills the border of a shifted image by reflection at its edges; otherwise with zeros, which
    /// are normalised like all bytes.
    pub reflects: bool,
}

/// An image of a batch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sample {
    /// Index among the stored images.
    pub index: usize,
    /// Rows by which it is shifted down.
    pub down: i32,
    /// Columns by which it is shifted to the right.
    pub right: i32,
    /// Mirrors it left to right after the shift.
    pub mirrored: bool,
}
