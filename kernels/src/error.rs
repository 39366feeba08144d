//! Errors of calls: every kernel checks its arguments before it touches memory.

/// An invalid call of a kernel.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum KernelError {
    /// The length of a slice does not match the shape.
    #[error("{op}: `{what}` has {found} elements, but the shape needs {expected}")]
    Length {
        /// The operation.
        op: &'static str,
        /// Name of the argument.
        what: &'static str,
        /// Number of elements of the shape.
        expected: usize,
        /// Number of elements given.
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
    /// The number of elements of a shape does not fit into memory.
    #[error("{op}: the shape has too many elements. Use smaller sizes")]
    TooLarge {
        /// The operation.
        op: &'static str,
    },
    /// A window is larger than the padded image.
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
    /// The padding is so large that a window could lie in it entirely.
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
        /// Largest valid padding.
        max: usize,
    },
    /// The chosen method does not support the shape.
    #[error(
        "{op}: Winograd supports only 3×3 windows with stride 1 and a padding of at most 2. Use \
         the direct method"
    )]
    NotWinograd {
        /// The operation.
        op: &'static str,
    },
    /// A class is not among the logits.
    #[error("cross-entropy: row {row} has class {class}, but there are {classes} classes")]
    Class {
        /// Row of the batch.
        row: usize,
        /// Its class.
        class: u32,
        /// Number of classes.
        classes: usize,
    },
    /// A number is out of range.
    #[error("{op}: `{what}` is outside its range, {range}")]
    Range {
        /// The operation.
        op: &'static str,
        /// Name of the argument.
        what: &'static str,
        /// The range in words.
        range: &'static str,
    },
    /// A tensor is not f32, or has the wrong number of dimensions.
    #[error("the kernels need f32 tensors. Cast this one first")]
    Storage,
    /// This machine lacks the instruction set.
    #[error("the CPU does not support the instruction set {isa}. Choose one of {available}")]
    IsaMissing {
        /// The requested set.
        isa: &'static str,
        /// The available sets.
        available: String,
    },
    /// This machine lacks the path of bf16 products.
    #[error("the CPU does not support the bf16 path {path}. Choose one of {available}")]
    Bf16Missing {
        /// The requested path.
        path: &'static str,
        /// The available paths.
        available: String,
    },
    /// A variable of the environment asks for what this machine lacks.
    #[error("{variable}: {source}")]
    Variable {
        /// The environment variable.
        variable: &'static str,
        /// The reason.
        source: Box<KernelError>,
    },
    /// A name is not a path of bf16 products.
    #[error("{variable} is {value:?}, but must be amx, dot, f32 or amx-emulated")]
    Bf16Name {
        /// The environment variable.
        variable: &'static str,
        /// Its value.
        value: String,
    },
    /// A name is not an instruction set.
    #[error("{variable} is {value:?}, but must be avx512, avx2, neon or portable")]
    IsaName {
        /// The environment variable.
        variable: &'static str,
        /// Its value.
        value: String,
    },
}

impl KernelError {
    /// Wraps the error of a value that `variable` asked for.
    pub fn of_variable(self, variable: &'static str) -> Self {
        Self::Variable {
            variable,
            source: Box::new(self),
        }
    }

    /// Whether a variable of the environment must change.
    pub fn is_of_environment(&self) -> bool {
        matches!(
            self,
            Self::IsaName { .. } | Self::Bf16Name { .. } | Self::Variable { .. }
        )
    }
}

/// The product of `sizes`. None may be zero, and it must fit into memory as f32.
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

/// The places of a window along a side of `size`, padded by at most `max` at both ends.
pub(crate) fn places(
    op: &'static str,
    size: usize,
    [window, stride, padding]: [usize; 3],
    max: usize,
) -> Result<usize, KernelError> {
    volume(op, &[("kernel", window)])?;
    volume(op, &[("stride", stride)])?;
    if padding > max {
        return Err(KernelError::Padding {
            op,
            padding,
            window,
            max,
        });
    }
    let padded = padding
        .checked_mul(2)
        .and_then(|padding| padding.checked_add(size))
        .ok_or(KernelError::TooLarge { op })?;
    let room = padded
        .checked_sub(window)
        .ok_or(KernelError::Window { op, window, padded })?;
    Ok(room / stride + 1)
}

/// Checks that the argument `what` has the number of elements of the shape.
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
