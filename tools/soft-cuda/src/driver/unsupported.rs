//! Functions that programs look up but that are not implemented.
#![allow(unsafe_code)] // Exports C functions.

use std::ffi::{c_int, c_uint, c_void};

use super::call::{Code, call};
use super::{Error, Handle};

macro_rules! unsupported {
    ($($(#[$doc:meta])* $name:ident($($argument:ty),*);)*) => {$(
        $(#[$doc])*
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name($(_: $argument),*) -> Code {
            call(stringify!($name), || Err(Error::NotSupported))
        }
    )*};
}

unsupported! {
    /// Graphs are not implemented.
    cuStreamBeginCapture_v2(Handle, c_int);
    /// Graphs are not implemented.
    cuStreamEndCapture(Handle, *mut Handle);
    /// Graphs are not implemented.
    cuGraphDestroy(Handle);
    /// Graphs are not implemented.
    cuGraphExecDestroy(Handle);
    /// Graphs are not implemented.
    cuGraphGetNodes(Handle, *mut Handle, *mut usize);
    /// Graphs are not implemented.
    cuGraphInstantiateWithFlags(*mut Handle, Handle, u64);
    /// Graphs are not implemented.
    cuGraphLaunch(Handle, Handle);
    /// Graphs are not implemented.
    cuGraphUpload(Handle, Handle);
    /// Not implemented, because blocks that wait for each other might not run at the same time.
    cuLaunchCooperativeKernel(
        Handle, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, Handle, *mut *mut c_void
    );
    /// Kernels that use TMA are refused when they are loaded.
    cuTensorMapEncodeTiled(
        *mut c_void, c_int, c_uint, *mut c_void, *const u64, *const u64, *const u32, *const u32,
        c_int, c_int, c_int, c_int
    );
    /// Kernels that use TMA are refused when they are loaded.
    cuTensorMapEncodeIm2col(
        *mut c_void, c_int, c_uint, *mut c_void, *const u64, *const u64, *const c_int,
        *const c_int, c_uint, c_uint, *const u32, c_int, c_int, c_int, c_int
    );
}
