//! Options of GPU operations. These types exist whether or not the program has the operations.

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
    /// Padding above and below, and on the left and on the right.
    pub padding: [usize; 2],
}

/// Operations after a batch normalization.
#[derive(Clone, Debug, Default)]
pub struct ThenNorm {
    /// Applies ReLU.
    pub relu: bool,
    /// Dropout after that, of each value with this probability, as in [`crate::ops::dropout()`];
    /// below 1.
    pub drop: f64,
    /// Added after that; of the same shape and type.
    pub plus: Option<Tensor<4>>,
}

/// Properties of [`StoredImages`](super::StoredImages) besides their pixels.
#[derive(Clone, Debug)]
pub struct ImageFacts<'a> {
    /// Label of each image.
    pub labels: Tensor<1, Int>,
    /// Scale and offset of each channel: a byte becomes `byte * scale + offset`.
    pub lines: &'a [(f32, f32)],
    /// Rows and columns.
    pub size: [usize; 2],
    /// Whether a moved image continues mirrored at its outermost pixels. Otherwise zeros come in,
    /// which are normalized like all bytes.
    pub reflects: bool,
}

/// An image of a batch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sample {
    /// Index among the stored ones.
    pub index: usize,
    /// Rows by which it is moved down.
    pub down: i32,
    /// Columns by which it is moved to the right.
    pub right: i32,
    /// Mirrors it left to right after the shift.
    pub mirrored: bool,
}
