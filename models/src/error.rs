//! Errors of model configurations.

/// An invalid model configuration.
#[derive(thiserror::Error)]
pub enum ModelError {
    /// A size that must be at least one is zero.
    #[error("{model}: `{field}` is 0, but must be at least 1")]
    Zero {
        /// Name of the model.
        model: &'static str,
        /// Field of its configuration.
        field: &'static str,
    },
    /// A dropout rate is outside `[0, 1)`.
    #[error("{model}: `{field}` is {value}, but must be at least 0 and below 1")]
    Dropout {
        /// Name of the model.
        model: &'static str,
        /// Field of its configuration.
        field: &'static str,
        /// Its value.
        value: f64,
    },
    /// Images are too small: nothing would be left after the convolutions.
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
    /// The model cannot have this number of layers.
    #[error("{model}: the depth is {depth}, but must be {wanted}")]
    Depth {
        /// Name of the model.
        model: &'static str,
        /// Number of layers.
        depth: usize,
        /// The possible numbers.
        wanted: &'static str,
    },
    /// The model has too many blocks.
    #[error("{model}: {blocks} blocks are too many; the maximum is {most}")]
    TooDeep {
        /// Name of the model.
        model: &'static str,
        /// Number of blocks.
        blocks: usize,
        /// Largest number that works.
        most: usize,
    },
    /// The number of heads does not divide the width.
    #[error("{model}: `heads` is {heads}, but must divide `dim`, {dim}")]
    Heads {
        /// Name of the model.
        model: &'static str,
        /// Number of heads.
        heads: usize,
        /// Width of the tokens.
        dim: usize,
    },
    /// Patches do not divide the images.
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
    /// The model is for another task.
    #[error(
        "the model is for the task `{of}`, not for `{task}`. Choose another model.name or task.name"
    )]
    OtherTask {
        /// Name of the model's task.
        of: &'static str,
        /// Name of the other task.
        task: &'static str,
    },
    /// Images cannot be halved as often as the model does.
    #[error(
        "{model}: images of {height}×{width} pixels cannot be halved {levels} times. Their sides \
         must be multiples of {}", 1usize << levels
    )]
    Halves {
        /// Name of the model.
        model: &'static str,
        /// Height of the images.
        height: usize,
        /// Width of the images.
        width: usize,
        /// Number of halvings.
        levels: usize,
    },
    /// The product of sizes overflows.
    #[error("{model}: the sizes are too large, the number of parameters overflows")]
    TooLarge {
        /// Name of the model.
        model: &'static str,
    },
}

burn_dist::debug_is_display!(ModelError);
