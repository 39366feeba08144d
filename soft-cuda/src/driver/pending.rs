//! What streams still have to do. The driver's own calls are over when they return, but NCCL's are not: who
//! comes after them in a stream must wait.

use std::collections::BTreeMap;
use std::sync::{Condvar, Mutex, PoisonError};

use super::Handle;
use crate::report::lock;

struct Work {
    device: usize,
    stream: Handle,
    /// It failed. It does not count as done, but nobody waits for it.
    lost: bool,
}

impl Work {
    fn is_in(&self, (device, stream): (usize, Handle)) -> bool {
        (self.device, self.stream) == (device, one_name(stream))
    }
}

type List = BTreeMap<u64, Work>;

/// In the order in which it was enqueued.
static WORK: Mutex<List> = Mutex::new(List::new());
static CHANGED: Condvar = Condvar::new();

/// `CU_STREAM_LEGACY` is the default stream.
fn one_name(stream: Handle) -> Handle {
    match stream {
        1 => 0,
        _ => stream,
    }
}

/// Something enqueued in a stream, which is done when this is dropped.
pub(crate) struct Ticket {
    number: u64,
    place: (usize, Handle),
}

impl Ticket {
    /// The last place in a stream of a device.
    pub fn take(device: usize, stream: Handle) -> Self {
        let mut list = lock(&WORK);
        let number = list.last_key_value().map_or(0, |(last, _)| last + 1);
        let work = Work {
            device,
            stream: one_name(stream),
            lost: false,
        };
        list.insert(number, work);
        Self {
            number,
            place: (device, stream),
        }
    }

    /// Waits until all before it in its stream is done, or there is no point in waiting; who changes that
    /// calls [`wake`].
    pub fn wait_for_turn(&self, pointless: impl Fn() -> bool) {
        wait_while(|list| {
            let mut before = list.range(..self.number);
            before.any(|(_, work)| work.is_in(self.place)) && !pointless()
        });
    }

    /// Says that it never gets done.
    pub fn lose(&self) {
        if let Some(work) = lock(&WORK).get_mut(&self.number) {
            work.lost = true;
        }
        CHANGED.notify_all();
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        lock(&WORK).remove(&self.number);
        CHANGED.notify_all();
    }
}

/// Makes all that wait look again.
pub(crate) fn wake() {
    // Who looked before the change, and does not wait yet, holds this.
    drop(lock(&WORK));
    CHANGED.notify_all();
}

fn wait_while(condition: impl Fn(&List) -> bool) {
    let list = CHANGED.wait_while(lock(&WORK), |list| condition(list));
    drop(list.unwrap_or_else(PoisonError::into_inner));
}

/// Whether a stream has something to do, or something that failed.
pub(super) fn any(device: usize, stream: Handle) -> bool {
    let list = lock(&WORK);
    list.values().any(|work| work.is_in((device, stream)))
}

/// Waits until a stream has nothing to do that can still be done.
pub(super) fn wait_for_stream(device: usize, stream: Handle) {
    wait_while(|list| {
        let mut in_stream = list.values().filter(|work| work.is_in((device, stream)));
        in_stream.any(|work| !work.lost)
    });
}

/// As [`wait_for_stream`], for all streams of a device.
pub(super) fn wait_for_device(device: usize) {
    wait_while(|list| list.values().any(|w| w.device == device && !w.lost));
}
