//! "Event Management": an event marks a place in a stream, and the time when all work before it was
//! done.
#![allow(unsafe_code)] // Exports C functions.

use std::ffi::c_uint;
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Instant;

use super::call::{Code, Out, call, put};
use super::context::{current, usable};
use super::handles::{Handle, Handles};
use super::pending::Mark;
use super::{Error, queue, stream};
use crate::report::lock;

struct Event {
    device: usize,
    /// True if the event records its time.
    timed: bool,
    recorded: Mutex<Option<Record>>,
}

#[derive(Clone)]
struct Record {
    /// `None` if all earlier work was already done.
    mark: Option<Mark>,
    time: Arc<OnceLock<Instant>>,
}

static EVENTS: Handles<Event> = Handles::new(0x3_0000_0000);

/// `CU_EVENT_DISABLE_TIMING`
const UNTIMED: c_uint = 2;

/// Returns the place of an event. Refuses invalid events, and a device on which a kernel failed.
pub(super) fn mark(event: Handle) -> Result<Option<Mark>, Error> {
    let event = EVENTS.get(event)?;
    usable(event.device)?;
    Ok(lock(&event.recorded)
        .as_ref()
        .and_then(|record| record.mark))
}

/// Creates an event.
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

/// Destroys an event.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuEventDestroy_v2(event: Handle) -> Code {
    call("cuEventDestroy_v2", || EVENTS.remove(event).map(drop))
}

/// Records the time when all work before it is done.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuEventRecord(event: Handle, stream: Handle) -> Code {
    call("cuEventRecord", || {
        let device = stream::device_of(stream)?;
        let event = EVENTS.get(event)?;
        let time = Arc::new(OnceLock::new());
        let taken = time.clone();
        let take = move || {
            let _ = taken.set(Instant::now());
            Ok(())
        };
        let mark = queue::enqueue(device, stream, take)?;
        *lock(&event.recorded) = Some(Record { mark, time });
        Ok(())
    })
}

/// Returns whether the work before it is done.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuEventQuery(event: Handle) -> Code {
    call("cuEventQuery", || match mark(event)? {
        Some(mark) if !mark.is_done() => Err(Error::NotReady),
        _ => Ok(()),
    })
}

/// Waits for the work before it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuEventSynchronize(event: Handle) -> Code {
    call("cuEventSynchronize", || {
        if let Some(mark) = mark(event)? {
            mark.wait();
        }
        // Some work may have failed.
        mark(event).map(drop)
    })
}

/// Returns the milliseconds between two events.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuEventElapsedTime(out: Out<f32>, start: Handle, end: Handle) -> Code {
    call("cuEventElapsedTime", || {
        let time = |event: Handle| {
            mark(event)?;
            let event = EVENTS.get(event)?;
            let recorded = lock(&event.recorded).clone().filter(|_| event.timed);
            let time = recorded.ok_or(Error::InvalidHandle)?.time;
            time.get().copied().ok_or(Error::NotReady)
        };
        let (start, end) = (time(start)?, time(end)?);
        let took = end.saturating_duration_since(start).as_secs_f32();
        // The later event may have been recorded first.
        let before = start.saturating_duration_since(end).as_secs_f32();
        put(out, (took - before) * 1e3)
    })
}

/// Does the same as [`cuEventElapsedTime`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuEventElapsedTime_v2(out: Out<f32>, start: Handle, end: Handle) -> Code {
    // SAFETY: guaranteed by the caller.
    unsafe { cuEventElapsedTime(out, start, end) }
}
