//! "Primary Context Management" and "Context Management": each device has one context, and each
//! thread a current one.
#![allow(unsafe_code)] // Exports C functions.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::ffi::{c_int, c_uint};
use std::sync::Mutex;

use super::call::{Code, Out, call, put};
use super::device::device;
use super::{Error, Handle, pending};
use crate::report::lock;

/// The handle of device 0's context.
const FIRST: Handle = 0x1000;

/// Devices on which a kernel failed, and the error; they are unusable until their context is reset.
static FAILED: Mutex<BTreeMap<usize, Error>> = Mutex::new(BTreeMap::new());

/// Reference counts of the contexts.
static HELD: Mutex<BTreeMap<usize, usize>> = Mutex::new(BTreeMap::new());

thread_local! {
    static CURRENT: Cell<Option<usize>> = const { Cell::new(None) };
}

/// Returns the current device of this thread, if it is still usable.
pub(crate) fn current() -> Result<usize, Error> {
    usable(CURRENT.get().ok_or(Error::InvalidContext)?)
}

/// Refuses a device on which a kernel failed.
pub(super) fn usable(device: usize) -> Result<usize, Error> {
    match lock(&FAILED).get(&device) {
        Some(&error) => Err(error),
        None => Ok(device),
    }
}

/// Makes a device unusable, as a kernel's fault does.
pub(super) fn fail(device: usize, error: Error) {
    lock(&FAILED).entry(device).or_insert(error);
}

/// Retains a device's context, which exists as long as it is retained.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDevicePrimaryCtxRetain(out: Out<Handle>, number: c_int) -> Code {
    call("cuDevicePrimaryCtxRetain", || {
        let device = device(number)?;
        put(out, FIRST + device)?;
        *lock(&HELD).entry(device).or_default() += 1;
        Ok(())
    })
}

/// Releases a context.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDevicePrimaryCtxRelease_v2(number: c_int) -> Code {
    call("cuDevicePrimaryCtxRelease_v2", || {
        let device = device(number)?;
        let mut held = lock(&HELD);
        match held.get_mut(&device) {
            Some(count @ 1..) => *count -= 1,
            _ => return Err(Error::InvalidContext),
        }
        if held[&device] == 0 {
            lock(&FAILED).remove(&device);
        }
        Ok(())
    })
}

/// Resets a context.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDevicePrimaryCtxReset_v2(number: c_int) -> Code {
    call("cuDevicePrimaryCtxReset_v2", || {
        lock(&FAILED).remove(&device(number)?);
        Ok(())
    })
}

/// Sets how a context waits; has no effect here.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDevicePrimaryCtxSetFlags_v2(number: c_int, _flags: c_uint) -> Code {
    call("cuDevicePrimaryCtxSetFlags_v2", || device(number).map(drop))
}

/// Does the same as [`cuDevicePrimaryCtxSetFlags_v2`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuCtxSetFlags(_flags: c_uint) -> Code {
    call("cuCtxSetFlags", || current().map(drop))
}

/// Sets this thread's current context, or none.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuCtxSetCurrent(context: Handle) -> Code {
    call("cuCtxSetCurrent", || {
        let device = match context {
            0 => None,
            _ => {
                let number = context.checked_sub(FIRST).map(c_int::try_from);
                let number = number.and_then(Result::ok).ok_or(Error::InvalidContext)?;
                Some(device(number).map_err(|_| Error::InvalidContext)?)
            }
        };
        CURRENT.set(device);
        Ok(())
    })
}

/// Returns this thread's current context.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuCtxGetCurrent(out: Out<Handle>) -> Code {
    call("cuCtxGetCurrent", || {
        put(out, CURRENT.get().map_or(0, |device| FIRST + device))
    })
}

/// Returns the device of that context.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuCtxGetDevice(out: Out<c_int>) -> Code {
    call("cuCtxGetDevice", || {
        let device = CURRENT.get().ok_or(Error::InvalidContext)?;
        put(out, device as c_int)
    })
}

/// Waits for the work of the device's streams.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuCtxSynchronize() -> Code {
    call("cuCtxSynchronize", || {
        pending::wait_for_device(current()?);
        current().map(drop)
    })
}

/// Returns the least and the greatest priority of streams.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuCtxGetStreamPriorityRange(least: Out<c_int>, most: Out<c_int>) -> Code {
    call("cuCtxGetStreamPriorityRange", || {
        current()?;
        // A caller that only needs one of them passes null for the other.
        least.map(|out| out.write(0));
        most.map(|out| out.write(-5));
        Ok(())
    })
}
