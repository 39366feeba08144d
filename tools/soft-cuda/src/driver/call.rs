//! The frame of every call: it counts the call, turns the result into a code, and contains panics.

use std::ffi::c_int;
use std::mem::MaybeUninit;

use super::Error;
use crate::report;

/// `CUresult`
pub type Code = c_int;

/// The place for a result: a pointer that may be null.
pub type Out<'o, T> = Option<&'o mut MaybeUninit<T>>;

/// Does what a call is for.
pub(super) fn call(name: &'static str, work: impl FnOnce() -> Result<(), Error>) -> Code {
    report::count(name);
    let done = report::contained(name, Error::Unknown, work);
    done.map_or_else(|error| error as Code, |()| 0)
}

/// Gives a caller a result.
pub(super) fn put<T>(out: Out<'_, T>, value: T) -> Result<(), Error> {
    out.ok_or(Error::InvalidValue)?.write(value);
    Ok(())
}
