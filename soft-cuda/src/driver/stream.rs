//! "Stream Management": a stream is no more than a handle, since each call does its work at once,
//! when what NCCL has to do in it is done.
#![allow(unsafe_code)] // Exports C functions.

use std::ffi::{c_int, c_uint, c_void};

use super::call::{Code, Out, call, put};
use super::context::{current, usable};
use super::event;
use super::handles::{Handle, Handles};
use super::{Error, pending, table};

/// Devices of streams. A thread that waits for a stream need not have a current context.
static STREAMS: Handles<usize> = Handles::new(0x2_0000_0000);

/// Streams that are always there: the default one, `CU_STREAM_LEGACY` and `CU_STREAM_PER_THREAD`.
const DEFAULT: [Handle; 3] = [0, 1, 2];

/// Whether it is a stream of the device that the thread works with.
pub(crate) fn is_default(stream: Handle) -> bool {
    DEFAULT.contains(&stream)
}

/// The device of a stream. Refuses what is no stream, and a device on which a kernel failed.
pub(crate) fn device_of(stream: Handle) -> Result<usize, Error> {
    if is_default(stream) {
        return current();
    }
    usable(*STREAMS.get(stream)?)
}

/// As [`device_of`], when the stream has nothing to do any more.
pub(super) fn ready(stream: Handle) -> Result<usize, Error> {
    let device = device_of(stream)?;
    pending::wait_for_stream(device, stream);
    Ok(device)
}

/// A stream.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuStreamCreate(out: Out<Handle>, _flags: c_uint) -> Code {
    call("cuStreamCreate", || {
        let device = current()?;
        out.ok_or(Error::InvalidValue)?.write(STREAMS.add(device));
        Ok(())
    })
}

/// A stream.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuStreamCreateWithPriority(
    out: Out<Handle>,
    flags: c_uint,
    _priority: c_int,
) -> Code {
    // SAFETY: the same is promised.
    unsafe { cuStreamCreate(out, flags) }
}

/// Ends a stream when it has nothing to do any more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuStreamDestroy_v2(stream: Handle) -> Code {
    call("cuStreamDestroy_v2", || {
        pending::wait_for_stream(*STREAMS.get(stream)?, stream);
        STREAMS.remove(stream).map(drop)
    })
}

/// Waits for what the stream has to do.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuStreamSynchronize(stream: Handle) -> Code {
    call("cuStreamSynchronize", || ready(stream).map(drop))
}

/// Whether all is done.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuStreamQuery(stream: Handle) -> Code {
    call("cuStreamQuery", || {
        let device = device_of(stream)?;
        if pending::any(device, stream) {
            return Err(Error::NotReady);
        }
        Ok(())
    })
}

/// Waits for nothing: what was before the event was done when it was recorded.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuStreamWaitEvent(stream: Handle, event: Handle, _flags: c_uint) -> Code {
    call("cuStreamWaitEvent", || {
        device_of(stream)?;
        event::valid(event)
    })
}

/// Which stream uses some memory makes no difference.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuStreamAttachMemAsync(
    stream: Handle,
    address: u64,
    bytes: usize,
    _flags: c_uint,
) -> Code {
    call("cuStreamAttachMemAsync", || {
        device_of(stream)?;
        table::read().check(address, bytes)
    })
}

/// Whether what a stream does is recorded as a graph: it never is.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuStreamIsCapturing(stream: Handle, out: Out<c_int>) -> Code {
    call("cuStreamIsCapturing", || {
        device_of(stream)?;
        put(out, 0)
    })
}

/// `CUhostFn`
pub type HostFunction = Option<unsafe extern "C" fn(*mut c_void)>;

/// Calls a function when all before it is done.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuLaunchHostFunc(
    stream: Handle,
    function: HostFunction,
    data: *mut c_void,
) -> Code {
    call("cuLaunchHostFunc", || {
        ready(stream)?;
        let function = function.ok_or(Error::InvalidValue)?;
        // SAFETY: the caller says that it can be called with this.
        unsafe { function(data) };
        Ok(())
    })
}
