//! How operations on GPUs are computed. These types are there whether or not the program has the
//! operations.

use burn::tensor::{Int, Tensor};

/// How a window slides.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConvOptions {
    /// Step of the window down and to the right.
    pub stride: [usize; 2],
    /// Zeros above and below, and on the left and on the right.
    pub padding: [usize; 2],
}

/// How the window of max-pooling slides.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PoolOptions {
    /// Height and width of the window.
    pub window: [usize; 2],
    /// Step of the window down and to the right.
    pub stride: [usize; 2],
    /// Places above and below, and on the left and on the right, at which there is nothing.
    pub padding: [usize; 2],
}

/// What follows a batch normalization.
#[derive(Clone, Debug, Default)]
pub struct ThenNorm {
    /// ReLU.
    pub relu: bool,
    /// Dropout after that, of each value with this probability, as [`crate::ops::dropout()`] has
    /// it; below 1.
    pub drop: f64,
    /// A sum with this, of the same shape and type, after that.
    pub plus: Option<Tensor<4>>,
}

/// What [`StoredImages`](super::StoredImages) know beside their pixels.
#[derive(Clone, Debug)]
pub struct ImageFacts<'a> {
    /// What each image shows.
    pub labels: Tensor<1, Int>,
    /// A byte of a channel becomes `byte * scale + offset`, with that channel's pair.
    pub lines: &'a [(f32, f32)],
    /// Rows and columns.
    pub size: [usize; 2],
    /// Whether an image goes on, mirrored at its outermost pixels, where it was moved away; else
    /// zeros come in, which are normalised as all bytes are.
    pub reflects: bool,
}

/// An image of a batch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sample {
    /// Which of the stored ones.
    pub index: usize,
    /// Rows that it is moved down.
    pub down: i32,
    /// Columns that it is moved to the right.
    pub right: i32,
    /// Whether it is then mirrored left to right.
    pub mirrored: bool,
}
