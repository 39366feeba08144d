//! Errors between a gradient and its reduction.

use super::layout::ParameterSpec;
use crate::{DType, Error};

/// An error in collecting or reducing a gradient. The step and the reducer are lost.
#[derive(thiserror::Error)]
pub enum BucketError {
    /// A collective failed, here or on another rank.
    #[error(transparent)]
    Group(#[from] Error),
    /// A parameter has an element type that cannot be averaged.
    #[error("parameter `{path}` holds {dtype}; trainable parameters must be f32, f16, bf16 or f64")]
    NotFloat {
        /// Path of the parameter in the model.
        path: String,
        /// Its element type.
        dtype: DType,
    },
    /// A gradient has another length or type than its parameter.
    #[error(
        "the gradient of `{path}` has {found_len} elements of {found}, but its parameter has \
         {expected_len} of {expected}"
    )]
    Mismatch {
        /// Path of the parameter in the model.
        path: String,
        /// Number of elements of the parameter.
        expected_len: usize,
        /// Element type of the parameter.
        expected: DType,
        /// Number of elements of the gradient.
        found_len: usize,
        /// Element type of the gradient, in Burn's words.
        found: String,
    },
    /// The device did not return the gradient's values.
    #[error("cannot read the gradient of `{path}`: {reason}")]
    Read {
        /// Path of the parameter in the model.
        path: String,
        /// The device's error message.
        reason: String,
    },
    /// A gradient hook panicked.
    #[error("panic while collecting the gradient of `{path}`: {reason}")]
    Panicked {
        /// Path of the parameter in the model.
        path: String,
        /// The message of the panic.
        reason: String,
    },
    /// A part of a gradient arrived after the rest had been sent.
    #[error(
        "`{path}` received a gradient after its bucket was sent. Do not read parameters of the \
         model while backward runs"
    )]
    Late {
        /// Path of the parameter in the model.
        path: String,
    },
    /// The calls were not in the order backward, …, backward, step.
    #[error("{0}")]
    Order(&'static str),
    /// An earlier error made further steps impossible.
    #[error("training cannot continue after an earlier error: {reason}")]
    Failed {
        /// The first error.
        reason: String,
    },
}

crate::debug_is_display!(BucketError);

impl BucketError {
    /// A gradient with the wrong length or type; the parameter's part has `expected` elements.
    pub(super) fn mismatch(
        spec: &ParameterSpec,
        expected: usize,
        (len, dtype): (usize, burn::tensor::DType),
    ) -> Self {
        Self::Mismatch {
            path: spec.path.clone(),
            expected_len: expected,
            expected: spec.dtype,
            found_len: len,
            found: format!("{dtype:?}"),
        }
    }

    /// A gradient that the device did not return. `None` if the parameter is unknown.
    pub(super) fn unreadable(spec: Option<&ParameterSpec>, reason: String) -> Self {
        let path = spec.map_or("all parameters", |spec| &spec.path).to_owned();
        Self::Read { path, reason }
    }
}
