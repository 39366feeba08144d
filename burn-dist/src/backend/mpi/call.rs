//! Errors of MPI calls as values.

use std::ffi::{CStr, c_char, c_int};

use mpi::ffi;

/// Large enough for the messages of every library, with room to spare.
const LONGEST_MESSAGE: usize = 8192;

/// The library's message for a failed call.
#[derive(Debug, thiserror::Error)]
#[error("{call}: {message}")]
pub(crate) struct MpiError {
    /// Name of the function.
    pub call: &'static str,
    /// The library's words.
    pub message: String,
}

impl From<MpiError> for std::io::Error {
    fn from(error: MpiError) -> Self {
        Self::other(error)
    }
}

/// Turns the result of an MPI function into a value.
pub(super) fn check(call: &'static str, code: c_int) -> Result<(), MpiError> {
    if code == ffi::MPI_SUCCESS as c_int {
        return Ok(());
    }
    let mut text: [c_char; LONGEST_MESSAGE] = [0; LONGEST_MESSAGE];
    let mut length = 0;
    // SAFETY: the buffer is longer than MPI_MAX_ERROR_STRING of every library (256 to 1024). It
    // stays terminated, because it is one zero longer than what is written.
    let message = unsafe {
        match ffi::MPI_Error_string(code, text.as_mut_ptr(), &mut length) {
            0 => CStr::from_ptr(text.as_ptr()).to_string_lossy().into_owned(),
            _ => format!("error {code}"),
        }
    };
    Err(MpiError { call, message })
}
