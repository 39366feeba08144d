//! Batches of indices from a sampler, collated one by one in the training thread.

use std::sync::Arc;

use datasets::Epoch;

use crate::error::TrainError;

/// Items of a split that become batches.
pub trait Collate {
    /// A batch in host memory.
    type Batch;

    /// Reads the items at `indices` and joins them.
    ///
    /// # Errors
    /// Fails if an item cannot be read.
    fn collate(&self, indices: &[usize]) -> Result<Self::Batch, TrainError>;
}

/// The batches of an epoch.
pub struct Collated<C> {
    items: Arc<C>,
    epoch: Option<Epoch>,
    next: usize,
}

impl<C> Collated<C> {
    /// Batches of `epoch`; none without one.
    pub(super) fn new(items: &Arc<C>, epoch: Option<Epoch>) -> Self {
        Self {
            items: items.clone(),
            epoch,
            next: 0,
        }
    }

    /// Number of batches.
    pub(super) fn number(&self) -> usize {
        self.epoch.as_ref().map_or(0, Epoch::batches)
    }
}

impl<C: Collate> Iterator for Collated<C> {
    type Item = Result<C::Batch, TrainError>;

    fn next(&mut self) -> Option<Self::Item> {
        let indices = self.epoch.as_ref()?.get(self.next)?;
        self.next += 1;
        Some(self.items.collate(indices))
    }
}
