//! One thread for each stream does its work, so that calls return before their work is done, as
//! with a real driver. So a program that reads a result too early, or frees memory that is still
//! needed, is detected.
//!
//! Work in a default stream is done before the call returns. So is all work if kernels are not run
//! (`SOFT_CUDA_IDLE`, `SOFT_CUDA_COUNTS`), because there the time of calls matters.

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

/// A stream's piece of work. A failure makes the device useless.
type Work = Box<dyn FnOnce() -> Result<(), Error> + Send>;

/// Hands work to a thread. The lock is held while an item gets its place, so that the thread
/// receives all in order.
type Worker = Arc<Mutex<Sender<(Work, Ticket)>>>;

static WORKERS: Mutex<BTreeMap<Handle, Worker>> = Mutex::new(BTreeMap::new());

/// Does work in a stream of a device when all before it is done. Returns its place, if it was not
/// done at once.
///
/// # Errors
/// Errors of work that was done at once; also fails if no thread can be started.
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

/// Whether calls for this stream return when their work is done.
pub(super) fn at_once(stream: Handle) -> bool {
    is_default(stream) || settings().idle
}

/// No more work comes.
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
        // After a failure a device does no more work.
        if usable(device).is_ok()
            && let Err(error) = contained("a stream", Error::Unknown, work)
        {
            fail(device, error);
        }
    }
}
