//! "Event Management": an event is the time of the call that recorded it.
#![allow(unsafe_code)] // Exports C functions.

use std::ffi::c_uint;
use std::sync::Mutex;
use std::time::Instant;

use super::call::{Code, Out, call, put};
use super::context::{current, usable};
use super::handles::{Handle, Handles};
use super::{Error, stream};
use crate::report::lock;

struct Event {
    device: usize,
    /// Whether it may be asked for the time.
    timed: bool,
    recorded: Mutex<Option<Instant>>,
}

static EVENTS: Handles<Event> = Handles::new(0x3_0000_0000);

/// `CU_EVENT_DISABLE_TIMING`
const UNTIMED: c_uint = 2;

/// Refuses what is no event, and a device on which a kernel failed.
pub(super) fn valid(event: Handle) -> Result<(), Error> {
    usable(EVENTS.get(event)?.device).map(drop)
}

/// An event.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuEventCreate(out: Out<Handle>, flags: c_uint) -> Code {
    call("cuEventCreate", || {
        let event = Event {
            device: current()?,
            timed: flags & UNTIMED == 0,
            recorded: Mutex::new(None),
        };
        out.ok_or(Error::InvalidValue)?.write(EVENTS.add(event));
        Ok(())
    })
}

/// Ends an event.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuEventDestroy_v2(event: Handle) -> Code {
    call("cuEventDestroy_v2", || EVENTS.remove(event).map(drop))
}

/// Takes the time when all before it is done.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuEventRecord(event: Handle, stream: Handle) -> Code {
    call("cuEventRecord", || {
        stream::ready(stream)?;
        *lock(&EVENTS.get(event)?.recorded) = Some(Instant::now());
        Ok(())
    })
}

/// Whether what was before it is done: it is.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuEventQuery(event: Handle) -> Code {
    call("cuEventQuery", || valid(event))
}

/// Waits for nothing.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuEventSynchronize(event: Handle) -> Code {
    call("cuEventSynchronize", || valid(event))
}

/// Milliseconds between two events.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuEventElapsedTime(out: Out<f32>, start: Handle, end: Handle) -> Code {
    call("cuEventElapsedTime", || {
        let time = |event: Handle| {
            valid(event)?;
            let event = EVENTS.get(event)?;
            let recorded = lock(&event.recorded).filter(|_| event.timed);
            recorded.ok_or(Error::InvalidHandle)
        };
        let (start, end) = (time(start)?, time(end)?);
        let took = end.saturating_duration_since(start).as_secs_f32();
        // It may be that a later event was recorded first.
        let before = start.saturating_duration_since(end).as_secs_f32();
        put(out, (took - before) * 1e3)
    })
}

/// As [`cuEventElapsedTime`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuEventElapsedTime_v2(out: Out<f32>, start: Handle, end: Handle) -> Code {
    // SAFETY: the same is promised.
    unsafe { cuEventElapsedTime(out, start, end) }
}
