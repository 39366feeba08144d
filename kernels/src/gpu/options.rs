//! How layers on GPUs are computed. These types are there whether or not the program has the layers.

use burn::tensor::Tensor;

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
    /// Dropout after that, of each value with this probability, as [`crate::ops::dropout()`] has it; below 1.
    pub drop: f64,
    /// A sum with this, of the same shape and type, after that.
    pub plus: Option<Tensor<4>>,
}
