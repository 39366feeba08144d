//! What can be wrong with a call: every kernel checks its arguments before it touches memory.

/// A call that no kernel can carry out.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum KernelError {
    /// A slice that does not have the length that the shape says.
    #[error("{op}: `{what}` has {found} elements, but the shape needs {expected}")]
    Length {
        /// The operation.
        op: &'static str,
        /// Name of the argument.
        what: &'static str,
        /// Elements that the shape asks for.
        expected: usize,
        /// Elements that were given.
        found: usize,
    },
    /// A size that must be at least one is zero.
    #[error("{op}: `{what}` is 0, but must be at least 1")]
    Zero {
        /// The operation.
        op: &'static str,
        /// Field of the shape.
        what: &'static str,
    },
    /// A shape whose number of elements does not fit into memory.
    #[error("{op}: the shape has too many elements. Use smaller sizes")]
    TooLarge {
        /// The operation.
        op: &'static str,
    },
    /// A window that is larger than the padded image.
    #[error(
        "{op}: a window of {window} is larger than the padded image, {padded}. Use a smaller \
         window or more padding"
    )]
    Window {
        /// The operation.
        op: &'static str,
        /// Side of the window.
        window: usize,
        /// Side of the image with its padding.
        padded: usize,
    },
    /// A padding that a window could lie in entirely.
    #[error(
        "{op}: a padding of {padding} is too large for a window of {window}. Use at most {max}"
    )]
    Padding {
        /// The operation.
        op: &'static str,
        /// Padding on each side.
        padding: usize,
        /// Side of the window.
        window: usize,
        /// Largest padding that works.
        max: usize,
    },
    /// A shape that the chosen method does not cover.
    #[error(
        "{op}: Winograd supports only 3×3 windows with stride 1 and a padding of at most 2. Use \
         the direct method"
    )]
    NotWinograd {
        /// The operation.
        op: &'static str,
    },
    /// A class that is not among the logits.
    #[error("cross-entropy: row {row} has class {class}, but there are {classes} classes")]
    Class {
        /// Row of the batch.
        row: usize,
        /// Its class.
        class: u32,
        /// Number of classes.
        classes: usize,
    },
    /// A number outside of the range in which it means something.
    #[error("{op}: `{what}` is outside its range, {range}")]
    Range {
        /// The operation.
        op: &'static str,
        /// Name of the argument.
        what: &'static str,
        /// The range in words.
        range: &'static str,
    },
    /// A tensor that is not of f32 numbers, or of another rank than the operation's.
    #[error("the kernels need f32 tensors. Cast this one first")]
    Storage,
    /// An instruction set that this machine does not have.
    #[error("the CPU does not support the instruction set {isa}. Choose one of {available}")]
    IsaMissing {
        /// The set that was asked for.
        isa: &'static str,
        /// The sets that work here.
        available: String,
    },
    /// A name that is no instruction set.
    #[error("{variable} is {value:?}, but must be avx512, avx2, neon or portable")]
    IsaName {
        /// The environment variable.
        variable: &'static str,
        /// Its value.
        value: String,
    },
}

/// The product of `sizes`, none of which may be zero and which must fit into memory as f32.
pub(crate) fn volume(
    op: &'static str,
    sizes: &[(&'static str, usize)],
) -> Result<usize, KernelError> {
    let mut product = 1usize;
    for &(what, size) in sizes {
        if size == 0 {
            return Err(KernelError::Zero { op, what });
        }
        product = product
            .checked_mul(size)
            .filter(|&elements| elements <= isize::MAX as usize / 64)
            .ok_or(KernelError::TooLarge { op })?;
    }
    Ok(product)
}

/// Checks that the argument `what` has as many elements as the shape says.
pub(crate) fn length(
    op: &'static str,
    what: &'static str,
    found: usize,
    expected: usize,
) -> Result<(), KernelError> {
    if found == expected {
        return Ok(());
    }
    Err(KernelError::Length {
        op,
        what,
        expected,
        found,
    })
}
