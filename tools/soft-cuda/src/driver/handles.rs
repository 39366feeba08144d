//! Handles by which a caller refers to objects of the driver.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use super::Error;
use crate::report::lock;

/// A pointer in C, whose target only the driver knows.
pub type Handle = usize;

/// Existing objects of one kind.
pub(crate) struct Handles<T> {
    next: AtomicUsize,
    all: Mutex<BTreeMap<Handle, Arc<T>>>,
}

impl<T> Handles<T> {
    /// Creates a table. Different kinds start at different numbers, so that a handle of another
    /// kind is invalid.
    pub const fn new(first: Handle) -> Self {
        Self {
            next: AtomicUsize::new(first),
            all: Mutex::new(BTreeMap::new()),
        }
    }

    pub fn add(&self, thing: T) -> Handle {
        let handle = self.next.fetch_add(16, Ordering::Relaxed);
        lock(&self.all).insert(handle, Arc::new(thing));
        handle
    }

    pub fn get(&self, handle: Handle) -> Result<Arc<T>, Error> {
        let thing = lock(&self.all).get(&handle).cloned();
        thing.ok_or(Error::InvalidHandle)
    }

    pub fn remove(&self, handle: Handle) -> Result<Arc<T>, Error> {
        let thing = lock(&self.all).remove(&handle);
        thing.ok_or(Error::InvalidHandle)
    }
}
