//! What can be wrong with a model's configuration.

/// A configuration no model can be built from.
#[derive(Debug, thiserror::Error)]
pub enum ModelError {
    /// A size that must be at least one is zero.
    #[error("{model}: `{field}` is 0, but must be at least 1")]
    Zero {
        /// Name of the model.
        model: &'static str,
        /// Field of its configuration.
        field: &'static str,
    },
    /// A dropout rate that is no probability below one.
    #[error("{model}: `{field}` is {value}, but must be at least 0 and below 1")]
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
        "{model}: images of {height}×{width} pixels are too small; the minimum is \
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
    /// A number of layers that the model cannot have.
    #[error("{model}: the depth is {depth}, but must be {wanted}")]
    Depth {
        /// Name of the model.
        model: &'static str,
        /// Number of layers.
        depth: usize,
        /// What it can be.
        wanted: &'static str,
    },
    /// More blocks than can be meant.
    #[error("{model}: {blocks} blocks are too many; the maximum is {most}")]
    TooDeep {
        /// Name of the model.
        model: &'static str,
        /// Number of blocks.
        blocks: usize,
        /// Largest number that works.
        most: usize,
    },
    /// Heads that cannot share the width among them.
    #[error("{model}: `heads` is {heads}, but must divide `dim`, {dim}")]
    Heads {
        /// Name of the model.
        model: &'static str,
        /// Number of heads.
        heads: usize,
        /// Width of the tokens.
        dim: usize,
    },
    /// Images that cannot be cut into whole patches.
    #[error(
        "{model}: images of {height}×{width} pixels do not divide into patches of {patch}×{patch}. \
         Choose a `patch` that divides both sides"
    )]
    Patch {
        /// Name of the model.
        model: &'static str,
        /// Height of the images.
        height: usize,
        /// Width of the images.
        width: usize,
        /// Side of a patch.
        patch: usize,
    },
    /// Sizes whose product does not fit in memory addresses.
    #[error("{model}: the sizes are too large, the number of parameters overflows")]
    TooLarge {
        /// Name of the model.
        model: &'static str,
    },
}
