//! Batches of indices from a sampler, collated by worker threads.

use std::sync::Arc;

use datasets::{DatasetError, Epoch};
use loader::pipeline::{Failure, Maker, Pipeline, Stop};

use crate::error::TrainError;

/// Items of a split that become batches.
pub trait Collate: Send + Sync + 'static {
    /// A batch in host memory.
    type Batch: Send + 'static;

    /// Reads the items at `indices` and joins them.
    ///
    /// # Errors
    /// Fails if an item cannot be read.
    fn collate(&self, indices: &[usize]) -> Result<Self::Batch, TrainError>;
}

/// Finished batches that each worker may be ahead.
const AHEAD: usize = 2;

/// The batches of an epoch, in order.
pub struct Collated<C: Collate>(Option<Pipeline<Job<C>>>);

impl<C: Collate> Collated<C> {
    /// Batches of `epoch`, made by `workers` threads; none without an epoch.
    pub(super) fn new(items: &Arc<C>, epoch: Option<Epoch>, workers: usize) -> Self {
        Self(epoch.map(|epoch| {
            let (items, count) = (Arc::clone(items), epoch.batches());
            Pipeline::start(Job { items, epoch }, Some(count), workers, AHEAD)
        }))
    }
}

impl<C: Collate> Iterator for Collated<C> {
    type Item = Result<C::Batch, TrainError>;

    fn next(&mut self) -> Option<Self::Item> {
        self.0.as_mut()?.next()
    }
}

/// State that workers share.
struct Job<C> {
    items: Arc<C>,
    epoch: Epoch,
}

impl<C: Collate> Maker for Job<C> {
    type Batch = C::Batch;
    type Error = TrainError;
    type Scratch = ();

    fn make(&self, position: usize, (): &mut (), _: &Stop) -> Result<Option<C::Batch>, TrainError> {
        let indices = self.epoch.get(position);
        indices
            .map(|indices| self.items.collate(indices))
            .transpose()
    }
}

impl From<Failure> for TrainError {
    fn from(failure: Failure) -> Self {
        DatasetError::from(failure).into()
    }
}
