//! What can go wrong between a gradient and its reduction.

use super::layout::ParameterSpec;
use crate::{DType, Error};

/// A gradient could not be collected or reduced. The step is lost, and so is the reducer.
#[derive(Debug, thiserror::Error)]
pub enum BucketError {
    /// A collective failed, here or on another rank.
    #[error(transparent)]
    Group(#[from] Error),
    /// A parameter whose element type cannot be averaged.
    #[error("parameter `{path}` holds {dtype}, but gradients are f32, f16, bf16 or f64")]
    NotFloat {
        /// Path of the parameter in the model.
        path: String,
        /// Its element type.
        dtype: DType,
    },
    /// A gradient that does not look like its parameter.
    #[error(
        "the gradient of `{path}` has {found_len} elements of {found}, its parameter has \
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
        /// Element type of the gradient, as Burn calls it.
        found: String,
    },
    /// The device would not give the gradient's values.
    #[error("the gradient of `{path}` could not be read: {reason}")]
    Read {
        /// Path of the parameter in the model.
        path: String,
        /// What the device said.
        reason: String,
    },
    /// A gradient hook panicked.
    #[error("collecting the gradient of `{path}` panicked: {reason}")]
    Panicked {
        /// Path of the parameter in the model.
        path: String,
        /// The panic's message.
        reason: String,
    },
    /// A part of a gradient appeared after the rest of it had been sent.
    #[error(
        "`{path}` got another part of its gradient after its bucket had been sent: do not read \
         parameters of the model while backward runs"
    )]
    Late {
        /// Path of the parameter in the model.
        path: String,
    },
    /// The calls did not come in the order backward, …, backward, step.
    #[error("{0}")]
    Order(&'static str),
    /// An earlier error has already made further steps impossible.
    #[error("training cannot go on after an earlier error: {reason}")]
    Failed {
        /// The first error.
        reason: String,
    },
}

impl BucketError {
    /// Of a gradient with so many elements of that type, where there should be as many as
    /// `expected` of the parameter's.
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

    /// Of a gradient that cannot be had; of all of them where that is not known.
    pub(super) fn unreadable(spec: Option<&ParameterSpec>, reason: String) -> Self {
        let path = spec.map_or("all parameters", |spec| &spec.path).to_owned();
        Self::Read { path, reason }
    }
}
