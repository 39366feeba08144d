//! "Stream Management": streams, each of which does its work in order (`queue`), and the default
//! ones, which do it while the program waits.
#![allow(unsafe_code)] // Exports C functions.

use std::ffi::{c_int, c_uint, c_void};
use std::ptr::with_exposed_provenance_mut;

use super::call::{Code, Out, call, put};
use super::context::{current, usable};
use super::event;
use super::handles::{Handle, Handles};
use super::{Error, pending, queue, table};

struct Stream {
    /// A thread that waits for a stream need not have a current context.
    device: usize,
    /// True if the default stream waits for it.
    blocking: bool,
}

static STREAMS: Handles<Stream> = Handles::new(0x2_0000_0000);

/// `CU_STREAM_NON_BLOCKING`
const NON_BLOCKING: c_uint = 1;

/// The default stream, under both its names.
const LEGACY: [Handle; 2] = [0, 1];

/// Streams that always exist: the default one, `CU_STREAM_LEGACY` and `CU_STREAM_PER_THREAD`.
const DEFAULT: [Handle; 3] = [0, 1, 2];

/// Returns true for a stream of the thread's current device.
pub(crate) fn is_default(stream: Handle) -> bool {
    DEFAULT.contains(&stream)
}

/// Returns the device of a stream. Refuses invalid streams, and a device on which a kernel failed.
pub(crate) fn device_of(stream: Handle) -> Result<usize, Error> {
    if is_default(stream) {
        return current();
    }
    usable(STREAMS.get(stream)?.device)
}

/// Does the same as [`device_of`], after the work of the stream and of those that it waits for.
pub(super) fn ready(stream: Handle) -> Result<usize, Error> {
    let device = device_of(stream)?;
    pending::wait_for_stream(device, stream);
    if LEGACY.contains(&stream) {
        let blocking = |other| STREAMS.get(other).is_ok_and(|stream| stream.blocking);
        pending::wait_for_streams(device, blocking);
    }
    usable(device)
}

/// Creates a stream.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuStreamCreate(out: Out<Handle>, flags: c_uint) -> Code {
    call("cuStreamCreate", || {
        let stream = Stream {
            device: current()?,
            blocking: flags & NON_BLOCKING == 0,
        };
        out.ok_or(Error::InvalidValue)?.write(STREAMS.add(stream));
        Ok(())
    })
}

/// Creates a stream.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuStreamCreateWithPriority(
    out: Out<Handle>,
    flags: c_uint,
    _priority: c_int,
) -> Code {
    // SAFETY: guaranteed by the caller.
    unsafe { cuStreamCreate(out, flags) }
}

/// Destroys a stream after its work.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuStreamDestroy_v2(stream: Handle) -> Code {
    call("cuStreamDestroy_v2", || {
        pending::wait_for_stream(STREAMS.get(stream)?.device, stream);
        queue::end(stream);
        STREAMS.remove(stream).map(drop)
    })
}

/// Waits for the stream's work.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuStreamSynchronize(stream: Handle) -> Code {
    call("cuStreamSynchronize", || ready(stream).map(drop))
}

/// Returns whether all work is done.
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

/// Makes a stream wait for an event as it was last recorded.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuStreamWaitEvent(stream: Handle, event: Handle, _flags: c_uint) -> Code {
    call("cuStreamWaitEvent", || {
        let device = device_of(stream)?;
        let Some(mark) = event::mark(event)? else {
            return Ok(());
        };
        let wait = move || {
            mark.wait();
            Ok(())
        };
        queue::enqueue(device, stream, wait).map(drop)
    })
}

/// Restricts memory to a stream; has no effect here.
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

/// Returns whether the stream's work is captured as a graph; it never is.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuStreamIsCapturing(stream: Handle, out: Out<c_int>) -> Code {
    call("cuStreamIsCapturing", || {
        device_of(stream)?;
        put(out, 0)
    })
}

/// `CUhostFn`
pub type HostFunction = Option<unsafe extern "C" fn(*mut c_void)>;

/// Calls a function after all earlier work.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuLaunchHostFunc(
    stream: Handle,
    function: HostFunction,
    data: *mut c_void,
) -> Code {
    call("cuLaunchHostFunc", || {
        let device = device_of(stream)?;
        let function = function.ok_or(Error::InvalidValue)?;
        let data = data.expose_provenance();
        let call = move || {
            // SAFETY: the caller guarantees that it can be called with this, from another thread.
            unsafe { function(with_exposed_provenance_mut(data)) };
            Ok(())
        };
        queue::enqueue(device, stream, call).map(drop)
    })
}
