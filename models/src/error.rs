//! What can be wrong with a model's configuration.

/// A configuration no model can be built from.
#[derive(Debug, thiserror::Error)]
pub enum ModelError {
    /// A size that must be at least one is zero.
    #[error("{model}: `{field}` is 0, it must be at least 1")]
    Zero {
        /// Name of the model.
        model: &'static str,
        /// Field of its configuration.
        field: &'static str,
    },
    /// A dropout rate that is no probability below one.
    #[error("{model}: `{field}` is {value}, it must be at least 0 and below 1")]
    Dropout {
        /// Name of the model.
        model: &'static str,
        /// Field of its configuration.
        field: &'static str,
        /// Its value.
        value: f64,
    },
    /// An image from which nothing would be left after the convolutions.
    #[error(
        "{model}: images of {height}×{width} pixels are too small, they must be at least \
         {minimum}×{minimum}"
    )]
    ImageTooSmall {
        /// Name of the model.
        model: &'static str,
        /// Height of the images.
        height: usize,
        /// Width of the images.
        width: usize,
        /// Smallest side that works.
        minimum: usize,
    },
    /// Sizes whose product does not fit in memory addresses.
    #[error("{model}: the sizes are too large, the number of parameters overflows")]
    TooLarge {
        /// Name of the model.
        model: &'static str,
    },
}
