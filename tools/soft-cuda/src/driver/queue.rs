//! Threads that do the work of streams, one for each stream, so that calls return before their work
//! is done, as a driver's do. This reveals a program that reads a result too early, or frees memory
//! that is still in use.
//!
//! Work in a default stream is done before the call returns, and so is everything if kernels are
//! not run (`SOFT_CUDA_IDLE`, `SOFT_CUDA_COUNTS`), because then the duration of calls is of
//! interest.

use std::collections::BTreeMap;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread;

use super::context::{fail, usable};
use super::pending::{Mark, Ticket};
use super::stream::{is_default, ready};
use super::{Error, Handle, priority};
use crate::report::{contained, lock, say};
use crate::settings::settings;

/// Work of a stream. A failure makes the device unusable.
type Work = Box<dyn FnOnce() -> Result<(), Error> + Send>;

/// Sends work to a thread. The lock is held while work gets its place, so that the thread receives
/// everything in order.
type Worker = Arc<Mutex<Sender<(Work, Ticket)>>>;

static WORKERS: Mutex<BTreeMap<Handle, Worker>> = Mutex::new(BTreeMap::new());

/// Enqueues work in a stream of a device. Returns its place, or `None` if it is done already.
///
/// # Errors
///
/// Returns the error of work that was done immediately, and fails if no thread can be started.
pub(super) fn enqueue(
    device: usize,
    stream: Handle,
    work: impl FnOnce() -> Result<(), Error> + Send + 'static,
) -> Result<Option<Mark>, Error> {
    if at_once(stream) {
        ready(stream)?;
        return work().map(|()| None);
    }
    let worker = worker(device, stream)?;
    let worker = lock(&worker);
    let ticket = Ticket::take(device, stream);
    let mark = ticket.mark();
    // The thread lives as long as there are senders.
    let _ = worker.send((Box::new(work), ticket));
    Ok(Some(mark))
}

fn worker(device: usize, stream: Handle) -> Result<Worker, Error> {
    let mut workers = lock(&WORKERS);
    if let Some(worker) = workers.get(&stream) {
        return Ok(worker.clone());
    }
    let worker = Arc::new(Mutex::new(start(device, stream)?));
    workers.insert(stream, worker.clone());
    Ok(worker)
}

/// Returns true if calls for this stream return when their work is done.
pub(super) fn at_once(stream: Handle) -> bool {
    is_default(stream) || settings().idle
}

/// Ends the thread of a stream.
pub(super) fn end(stream: Handle) {
    lock(&WORKERS).remove(&stream);
}

fn start(device: usize, stream: Handle) -> Result<Sender<(Work, Ticket)>, Error> {
    let (sender, work) = channel();
    let thread = thread::Builder::new().name(format!("soft-cuda-{stream:x}"));
    let started = thread.spawn(move || serve(device, &work));
    started.map_err(|error| {
        say(format_args!("no thread for a stream: {error}"));
        Error::OutOfMemory
    })?;
    Ok(sender)
}

fn serve(device: usize, all: &Receiver<(Work, Ticket)>) {
    priority::raise();
    for (work, ticket) in all {
        ticket.wait_for_turn(|| false);
        // After a failure no more work is done on a device.
        if usable(device).is_ok()
            && let Err(error) = contained("a stream", Error::Unknown, work)
        {
            fail(device, error);
        }
    }
}
