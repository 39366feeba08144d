//! What every call has in common: it is counted, its result becomes a code, and a panic stays
//! within it.

use std::ffi::c_int;
use std::mem::MaybeUninit;

use super::Error;
use crate::report;

/// `CUresult`
pub type Code = c_int;

/// Where a caller wants a result: a pointer that may be null.
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
