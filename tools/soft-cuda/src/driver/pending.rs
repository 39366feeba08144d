//! Pending work of streams: kernels, copies, NCCL's operations. Each is done after everything
//! enqueued before it in its stream.

use std::collections::BTreeMap;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use super::Handle;
use crate::report::lock;

/// A stream of a device.
type Place = (usize, Handle);

/// True if the work failed. It does not count as done, but nobody waits for it, nor for later work.
type Lost = bool;

/// Pending work in the order in which it was enqueued.
struct List {
    next: u64,
    streams: BTreeMap<Place, BTreeMap<u64, Lost>>,
}

static LIST: Mutex<List> = Mutex::new(List {
    next: 0,
    streams: BTreeMap::new(),
});
static CHANGED: Condvar = Condvar::new();

/// Largest queue of a stream; a caller that enqueues more waits, as with a GPU.
const MOST: usize = 1024;

/// `CU_STREAM_LEGACY` is the default stream.
fn place(device: usize, stream: Handle) -> Place {
    match stream {
        1 => (device, 0),
        _ => (device, stream),
    }
}

impl List {
    fn stream(&self, place: Place) -> impl Iterator<Item = (&u64, &Lost)> {
        self.streams.get(&place).into_iter().flatten()
    }

    /// Returns true if a stream has pending work up to this place that can still be done.
    fn is_busy(&self, place: Place, until: u64) -> bool {
        let first = self.stream(place).next();
        first.is_some_and(|(&number, &lost)| number <= until && !lost)
    }
}

/// A place in a stream; it is done when all work up to it is.
#[derive(Clone, Copy, Debug)]
pub(super) struct Mark {
    place: Place,
    number: u64,
}

impl Mark {
    /// Returns true if all work up to it is done.
    pub fn is_done(self) -> bool {
        let list = lock(&LIST);
        let first = list.stream(self.place).next();
        first.is_none_or(|(&number, _)| number > self.number)
    }

    /// Waits until it is done, or never can be.
    pub fn wait(self) {
        drop(wait_while(|list| list.is_busy(self.place, self.number)));
    }
}

/// Enqueued work of a stream, which is done when this is dropped.
pub(crate) struct Ticket {
    mark: Mark,
}

impl Ticket {
    /// Takes the last place in a stream of a device.
    pub fn take(device: usize, stream: Handle) -> Self {
        let place = place(device, stream);
        let full = |list: &List| list.streams.get(&place).is_some_and(|s| s.len() >= MOST);
        let mut list = wait_while(full);
        let number = list.next;
        list.next += 1;
        list.streams.entry(place).or_default().insert(number, false);
        let mark = Mark { place, number };
        Self { mark }
    }

    /// Returns its place.
    pub(super) fn mark(&self) -> Mark {
        self.mark
    }

    /// Waits until all work before it in its stream is done, or waiting is pointless. Code that
    /// changes the latter calls [`wake`].
    pub fn wait_for_turn(&self, pointless: impl Fn() -> bool) {
        let Mark { place, number } = self.mark;
        drop(wait_while(|list| {
            let first = list.stream(place).next();
            first.is_some_and(|(&first, _)| first < number) && !pointless()
        }));
    }

    /// Marks it as never done.
    pub fn lose(&self) {
        let Mark { place, number } = self.mark;
        let mut list = lock(&LIST);
        if let Some(lost) = list
            .streams
            .get_mut(&place)
            .and_then(|s| s.get_mut(&number))
        {
            *lost = true;
        }
        CHANGED.notify_all();
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        let Mark { place, number } = self.mark;
        let mut list = lock(&LIST);
        if let Some(stream) = list.streams.get_mut(&place) {
            stream.remove(&number);
            if stream.is_empty() {
                list.streams.remove(&place);
            }
        }
        CHANGED.notify_all();
    }
}

/// Wakes all waiting threads, which check their condition again.
pub(crate) fn wake() {
    // A thread between its check and its wait holds this lock.
    drop(lock(&LIST));
    CHANGED.notify_all();
}

fn wait_while(condition: impl Fn(&List) -> bool) -> MutexGuard<'static, List> {
    let list = CHANGED.wait_while(lock(&LIST), |list| condition(list));
    list.unwrap_or_else(PoisonError::into_inner)
}

/// Returns true if a stream has pending or failed work.
pub(super) fn any(device: usize, stream: Handle) -> bool {
    lock(&LIST).stream(place(device, stream)).next().is_some()
}

/// Waits until a stream has no pending work that can still be done.
pub(super) fn wait_for_stream(device: usize, stream: Handle) {
    let place = place(device, stream);
    drop(wait_while(|list| list.is_busy(place, u64::MAX)));
}

/// Does the same as [`wait_for_stream`] for all selected streams of a device.
pub(super) fn wait_for_streams(device: usize, chosen: impl Fn(Handle) -> bool) {
    drop(wait_while(|list| {
        let mut places = list.streams.keys().copied();
        places.any(|place| place.0 == device && chosen(place.1) && list.is_busy(place, u64::MAX))
    }));
}

/// Does the same as [`wait_for_stream`] for all streams of a device.
pub(super) fn wait_for_device(device: usize) {
    wait_for_streams(device, |_| true);
}
