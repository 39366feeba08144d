//! The codes of the driver (`CUresult`).
#![allow(unsafe_code)] // Exports C functions.

use std::ffi::{CStr, c_char};

use super::call::{Code, Out, call, put};

/// Error codes of calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(i32)]
#[allow(missing_docs)]
pub enum Error {
    InvalidValue = 1,
    OutOfMemory = 2,
    NotInitialized = 3,
    NoDevice = 100,
    InvalidDevice = 101,
    InvalidContext = 201,
    NoBinaryForGpu = 209,
    InvalidPtx = 218,
    FileNotFound = 301,
    InvalidHandle = 400,
    NotFound = 500,
    NotReady = 600,
    IllegalAddress = 700,
    MisalignedAddress = 716,
    LaunchFailed = 719,
    NotSupported = 801,
    Unknown = 999,
}

use Error::*;

/// Code, name and meaning.
const TABLE: &[(Code, &CStr, &CStr)] = &[
    (0, c"CUDA_SUCCESS", c"no error"),
    of(
        InvalidValue,
        c"CUDA_ERROR_INVALID_VALUE",
        c"invalid argument",
    ),
    of(OutOfMemory, c"CUDA_ERROR_OUT_OF_MEMORY", c"out of memory"),
    of(
        NotInitialized,
        c"CUDA_ERROR_NOT_INITIALIZED",
        c"initialization error",
    ),
    of(
        NoDevice,
        c"CUDA_ERROR_NO_DEVICE",
        c"no CUDA-capable device is detected",
    ),
    of(
        InvalidDevice,
        c"CUDA_ERROR_INVALID_DEVICE",
        c"invalid device ordinal",
    ),
    of(
        InvalidContext,
        c"CUDA_ERROR_INVALID_CONTEXT",
        c"invalid device context",
    ),
    of(
        NoBinaryForGpu,
        c"CUDA_ERROR_NO_BINARY_FOR_GPU",
        c"no kernel image is available for execution on the device",
    ),
    of(
        InvalidPtx,
        c"CUDA_ERROR_INVALID_PTX",
        c"a PTX JIT compilation failed",
    ),
    of(
        FileNotFound,
        c"CUDA_ERROR_FILE_NOT_FOUND",
        c"file not found",
    ),
    of(
        InvalidHandle,
        c"CUDA_ERROR_INVALID_HANDLE",
        c"invalid resource handle",
    ),
    of(NotFound, c"CUDA_ERROR_NOT_FOUND", c"named symbol not found"),
    of(NotReady, c"CUDA_ERROR_NOT_READY", c"device not ready"),
    of(
        IllegalAddress,
        c"CUDA_ERROR_ILLEGAL_ADDRESS",
        c"an illegal memory access was encountered",
    ),
    of(
        MisalignedAddress,
        c"CUDA_ERROR_MISALIGNED_ADDRESS",
        c"misaligned address",
    ),
    of(
        LaunchFailed,
        c"CUDA_ERROR_LAUNCH_FAILED",
        c"unspecified launch failure",
    ),
    of(
        NotSupported,
        c"CUDA_ERROR_NOT_SUPPORTED",
        c"operation not supported",
    ),
    of(Unknown, c"CUDA_ERROR_UNKNOWN", c"unknown error"),
];

const fn of(
    error: Error,
    name: &'static CStr,
    meaning: &'static CStr,
) -> (Code, &'static CStr, &'static CStr) {
    (error as Code, name, meaning)
}

impl std::fmt::Display for Error {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let entry = TABLE.iter().find(|entry| entry.0 == *self as Code);
        let name = entry.and_then(|entry| entry.1.to_str().ok());
        f.write_str(name.unwrap_or("CUDA_ERROR_UNKNOWN"))
    }
}

impl std::error::Error for Error {}

/// Looks up a code in the table for a [`call`].
fn look_up(code: Code, out: Out<*const c_char>, column: fn(usize) -> &'static CStr) -> Code {
    call("cuGetErrorName", || {
        let row = TABLE.iter().position(|entry| entry.0 == code);
        put(out, column(row.ok_or(InvalidValue)?).as_ptr())
    })
}

/// Returns the name of a code.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuGetErrorName(code: Code, out: Out<*const c_char>) -> Code {
    look_up(code, out, |row| TABLE[row].1)
}

/// Returns the meaning of a code.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuGetErrorString(code: Code, out: Out<*const c_char>) -> Code {
    look_up(code, out, |row| TABLE[row].2)
}
