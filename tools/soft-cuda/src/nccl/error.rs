//! The codes of NCCL (`ncclResult_t`), with a reason for the user.

use std::ffi::{CStr, c_int};

/// Error codes of calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(i32)]
pub(super) enum Code {
    UnhandledCuda = 1,
    System = 2,
    Internal = 3,
    InvalidArgument = 4,
    InvalidUsage = 5,
    Remote = 6,
}

/// A code and its reason.
#[derive(Debug)]
pub(super) struct Error {
    pub code: Code,
    pub reason: String,
}

impl Error {
    pub fn new(code: Code, reason: impl Into<String>) -> Self {
        Self {
            code,
            reason: reason.into(),
        }
    }

    pub fn argument(reason: impl Into<String>) -> Self {
        Self::new(Code::InvalidArgument, reason)
    }
}

/// Returns NCCL's text for a code.
pub(super) fn words(code: c_int) -> &'static CStr {
    match code {
        0 => c"no error",
        1 => c"unhandled cuda error (run with NCCL_DEBUG=INFO for details)",
        2 => c"unhandled system error (run with NCCL_DEBUG=INFO for details)",
        3 => c"internal error - please report this issue to the NCCL developers",
        4 => c"invalid argument (run with NCCL_DEBUG=WARN for details)",
        5 => c"invalid usage (run with NCCL_DEBUG=WARN for details)",
        6 => c"remote process exited or there was a network error",
        7 => c"NCCL operation in progress",
        _ => c"unknown result code",
    }
}
