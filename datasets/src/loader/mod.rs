//! Turns an epoch's indices into batches of images: workers read, augment and normalise ahead.

mod plan;
mod sample;

use std::fmt;
use std::sync::Arc;

use loader::pipeline::{Maker, Pipeline, Spare, Stop};

use crate::augment::{Augment, Normalizer};
use crate::{Dataset, DatasetError, Epoch, ImageShape};
pub use plan::{BatchPlan, Move, Plans};
use sample::{Samples, Scratch};

/// Images and labels of one micro-batch.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Batch {
    /// Normalised values, contiguous: image, channel, row, column.
    pub images: Vec<f32>,
    /// One label per image.
    pub labels: Vec<i32>,
    /// Second labels of mixed images.
    ///
    /// `None` if the augmentation does not mix, and in evaluations.
    pub mixed: Option<Mixed>,
    /// Index of each image in the data set.
    pub indices: Vec<usize>,
    /// The size of every image.
    pub shape: ImageShape,
}

/// The second labels of images that mixup or CutMix has mixed.
///
/// Image `i` belongs to class `Batch::labels[i]` with weight `weights[i]`, and to `labels[i]` with
/// weight `1 - weights[i]`.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Mixed {
    /// Label of the image that was mixed in; the image's own label without mixing.
    pub labels: Vec<i32>,
    /// Weight of the image's own label, from 0 to 1; 1 without mixing.
    pub weights: Vec<f32>,
}

/// Makes batches from a data set.
pub struct Loader {
    dataset: Arc<dyn Dataset>,
    normalizer: Normalizer,
    workers: usize,
    prefetch: usize,
    augment: Augment,
    seed: u64,
    spare: Spare<Batch>,
}

impl Loader {
    /// Creates a loader without augmentation that works in the calling thread.
    ///
    /// # Errors
    /// [`DatasetError::Normalization`] if the data set's statistics do not match its images.
    pub fn new(dataset: Arc<dyn Dataset>) -> Result<Self, DatasetError> {
        let normalizer = Normalizer::new(dataset.shape(), &dataset.normalization())?;
        Ok(Loader {
            dataset,
            normalizer,
            workers: 0,
            prefetch: 2,
            augment: Augment::none(),
            seed: 0,
            spare: Spare::default(),
        })
    }

    /// Sets the number of worker threads; 0 means the calling thread.
    pub fn workers(mut self, workers: usize) -> Self {
        self.workers = workers;
        self
    }

    /// Sets how many finished batches (at least 1, default 2) each worker may be ahead.
    pub fn prefetch(mut self, batches: usize) -> Self {
        self.prefetch = batches.max(1);
        self
    }

    /// Augments training images, depending on `seed`, epoch and image only.
    ///
    /// Evaluation is never augmented.
    pub fn augment(mut self, augment: Augment, seed: u64) -> Self {
        self.augment = augment;
        self.seed = seed;
        self
    }

    /// The batches of `epoch`, in order. Threads start here and end with the iterator.
    pub fn iter(&self, epoch: Epoch) -> BatchIter {
        let count = epoch.batches();
        let job = Job {
            samples: Samples {
                dataset: Arc::clone(&self.dataset),
                normalizer: self.normalizer.clone(),
                augment: self.augment.clone(),
                seed: self.seed,
                epoch: epoch.number(),
            },
            epoch,
            spare: self.spare.clone(),
        };
        BatchIter(Pipeline::start(
            job,
            Some(count),
            self.workers,
            self.prefetch,
        ))
    }
}

impl fmt::Debug for Loader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Loader")
            .field("images", &self.dataset.len())
            .field("workers", &self.workers)
            .field("prefetch", &self.prefetch)
            .field("augment", &self.augment)
            .finish_non_exhaustive()
    }
}

/// The batches of one epoch; made by [`Loader::iter`].
///
/// The first error ends it: it comes in its batch's place, and nothing after it. Dropping the
/// iterator stops the workers after their current image, and waits for that.
#[derive(Debug)]
pub struct BatchIter(Pipeline<Job>);

impl BatchIter {
    /// Returns a batch so that its memory can be reused. Optional.
    pub fn recycle(&self, batch: Batch) {
        self.0.maker().spare.give(batch);
    }
}

impl Iterator for BatchIter {
    type Item = Result<Batch, DatasetError>;

    fn next(&mut self) -> Option<Self::Item> {
        self.0.next()
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        self.0.size_hint()
    }
}

impl std::iter::FusedIterator for BatchIter {}

/// State that workers share.
struct Job {
    samples: Samples,
    epoch: Epoch,
    spare: Spare<Batch>,
}

impl Maker for Job {
    type Batch = Batch;
    type Error = DatasetError;
    type Scratch = Scratch;

    fn make(
        &self,
        position: usize,
        scratch: &mut Scratch,
        stop: &Stop,
    ) -> Result<Option<Batch>, DatasetError> {
        let indices = self.epoch.get(position).unwrap_or_default();
        let shape = self.samples.shape();
        let mut batch = self.empty_batch(indices.len(), shape)?;
        let images = batch.images.chunks_exact_mut(shape.len().max(1));
        let copies = self.epoch.copies(position);
        for (place, (&index, image)) in indices.iter().zip(images).enumerate() {
            if stop.is_set() {
                break; // Nobody will see this batch.
            }
            let label = self.samples.make(
                (index, copies.get(place).copied().unwrap_or(0)),
                scratch,
                image,
            )?;
            batch.labels.push(label.own);
            if let Some(mixed) = &mut batch.mixed {
                mixed.labels.push(label.other);
                mixed.weights.push(label.weight);
            }
        }
        batch.indices.extend_from_slice(indices);
        Ok(Some(batch))
    }
}

impl Job {
    /// A batch with room for `images` images, in memory of an earlier one if possible.
    fn empty_batch(&self, images: usize, shape: ImageShape) -> Result<Batch, DatasetError> {
        let mut batch = self.spare.take().unwrap_or_default();
        batch.labels.clear();
        batch.indices.clear();
        batch.shape = shape;
        batch.mixed = self.samples.mixes().then(|| {
            let mut mixed = batch.mixed.take().unwrap_or_default();
            mixed.labels.clear();
            mixed.weights.clear();
            mixed
        });
        let len = images.saturating_mul(shape.len());
        let missing = len.saturating_sub(batch.images.len());
        let memory = |_| DatasetError::Memory {
            images,
            bytes: len.saturating_mul(size_of::<f32>()),
        };
        batch.images.try_reserve_exact(missing).map_err(memory)?;
        batch.images.resize(len, 0.0);
        Ok(batch)
    }
}
