//! The result of a collective in progress.

use std::sync::Arc;

use parking_lot::{Condvar, Mutex};

use crate::buffer::Buffer;
use crate::error::{CollectiveError, Error};

/// A started collective. [`Handle::wait`] returns the buffer. Dropping the handle does not stop the
/// collective; it drops the buffer when the collective is done.
#[must_use = "the collective continues without it, but its buffer and its error are lost"]
pub struct Handle {
    slot: Arc<Slot>,
}

/// The end of a [`Handle`] that the progress thread holds. If it is dropped without a result, the
/// handle reports an error.
pub(super) struct Promise {
    slot: Arc<Slot>,
}

#[derive(Default)]
struct Slot {
    result: Mutex<Option<Result<Buffer, Error>>>,
    done: Condvar,
}

/// A handle, and the promise that fulfils it.
pub(super) fn pair() -> (Handle, Promise) {
    let slot = Arc::<Slot>::default();
    (Handle { slot: slot.clone() }, Promise { slot })
}

impl Handle {
    /// Waits until the collective is done.
    ///
    /// # Errors
    /// Returns a [`CollectiveError`]; the buffer is then lost.
    pub fn wait(self) -> Result<Buffer, Error> {
        let mut result = self.slot.result.lock();
        loop {
            if let Some(result) = result.take() {
                return result;
            }
            self.slot.done.wait(&mut result);
        }
    }

    /// Whether [`Handle::wait`] would return at once.
    pub fn is_done(&self) -> bool {
        self.slot.result.lock().is_some()
    }
}

impl Promise {
    pub fn fulfil(self, result: Result<Buffer, Error>) {
        self.slot.put(result);
    }
}

impl Slot {
    fn put(&self, value: Result<Buffer, Error>) {
        let mut result = self.result.lock();
        if result.is_none() {
            *result = Some(value);
            self.done.notify_all();
        }
    }
}

impl Drop for Promise {
    fn drop(&mut self) {
        // The waiting side holds the other reference: alone here means fulfilled and taken.
        if Arc::strong_count(&self.slot) > 1 {
            self.slot.put(Err(CollectiveError::NoProgress.into()));
        }
    }
}
