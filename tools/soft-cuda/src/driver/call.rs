//! The wrapper of every call: it counts the call, converts its result to a code, and catches
//! panics.

use std::ffi::c_int;
use std::mem::MaybeUninit;

use super::Error;
use crate::report;

/// `CUresult`
pub type Code = c_int;

/// Output argument of a call: a pointer that may be null.
pub type Out<'o, T> = Option<&'o mut MaybeUninit<T>>;

/// Runs the body of a call.
pub(super) fn call(name: &'static str, work: impl FnOnce() -> Result<(), Error>) -> Code {
    report::count(name);
    let done = report::contained(name, Error::Unknown, work);
    done.map_or_else(|error| error as Code, |()| 0)
}

/// Writes a result to an output argument.
pub(super) fn put<T>(out: Out<'_, T>, value: T) -> Result<(), Error> {
    out.ok_or(Error::InvalidValue)?.write(value);
    Ok(())
}
