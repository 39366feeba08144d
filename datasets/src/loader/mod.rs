//! Turns an epoch's indices into batches: worker threads read, augment and normalise ahead.
//!
//! Worker `w` of `n` makes the batches `w, w + n, w + 2n, ..` and sends them through its own
//! bounded channel; the iterator takes from the channels in turn. So the order needs no
//! bookkeeping, the number of batches in memory is bounded, and neither order nor content depends
//! on the number of workers.

mod plan;
mod sample;

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};

use crate::augment::{Augment, Normalizer};
use crate::{Dataset, DatasetError, Epoch, ImageShape};
pub use plan::{BatchPlan, Move, Plans};
use sample::{Samples, Scratch};

/// Largest number of batches kept for reuse; more would hold unused memory.
const MAX_SPARE: usize = 16;

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
    spare: Arc<Mutex<Vec<Batch>>>,
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
            spare: Arc::default(),
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
        let job = Arc::new(Job {
            samples: Samples {
                dataset: Arc::clone(&self.dataset),
                normalizer: self.normalizer.clone(),
                augment: self.augment.clone(),
                seed: self.seed,
                epoch: epoch.number(),
            },
            epoch,
            spare: Arc::clone(&self.spare),
            stopped: AtomicBool::new(false),
        });
        let mut batches = BatchIter {
            job,
            count,
            position: 0,
            failure: None,
            scratch: Scratch::default(),
            receivers: Vec::new(),
            threads: Vec::new(),
        };
        batches.start(self.workers.min(count), self.prefetch);
        batches
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
pub struct BatchIter {
    job: Arc<Job>,
    count: usize,
    position: usize,
    /// An error from before the first batch.
    failure: Option<DatasetError>,
    scratch: Scratch,
    /// One per worker; empty if `next` does the work.
    receivers: Vec<Receiver<Result<Batch, DatasetError>>>,
    threads: Vec<JoinHandle<()>>,
}

impl BatchIter {
    /// Returns a batch so that its memory can be reused. Optional.
    pub fn recycle(&self, batch: Batch) {
        self.job.recycle(batch);
    }

    fn start(&mut self, workers: usize, prefetch: usize) {
        for worker in 0..workers {
            // The batch that waits in `send` counts too.
            let (sender, receiver) = sync_channel(prefetch - 1);
            let (job, count) = (Arc::clone(&self.job), self.count);
            let started = thread::Builder::new()
                .name(format!("loader-{worker}"))
                .spawn(move || job.work((worker..count).step_by(workers), &sender));
            match started {
                Ok(thread) => self.threads.push(thread),
                Err(source) => {
                    self.failure = Some(DatasetError::Spawn { source });
                    return;
                }
            }
            self.receivers.push(receiver);
        }
    }

    fn take(&mut self) -> Result<Batch, DatasetError> {
        if let Some(failure) = self.failure.take() {
            return Err(failure);
        }
        if self.receivers.is_empty() {
            return self.job.make(self.position, &mut self.scratch);
        }
        let worker = self.position % self.receivers.len();
        let received = self.receivers.get(worker).map(Receiver::recv);
        match received {
            Some(Ok(result)) => result,
            _ => Err(DatasetError::Panic {
                position: self.position,
                message: "a loader thread ended unexpectedly".into(),
            }),
        }
    }

    fn stop(&mut self) {
        self.job.stopped.store(true, Ordering::Relaxed);
        self.receivers.clear();
        for thread in self.threads.drain(..) {
            // Its panics were caught and returned as errors.
            let _ = thread.join();
        }
    }
}

impl Iterator for BatchIter {
    type Item = Result<Batch, DatasetError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.position == self.count {
            return None;
        }
        let result = self.take();
        self.position += 1;
        if result.is_err() {
            self.position = self.count;
            self.stop();
        }
        Some(result)
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        let remaining = self.count - self.position;
        // An error may end the iterator early.
        (remaining.min(1), Some(remaining))
    }
}

impl std::iter::FusedIterator for BatchIter {}

impl Drop for BatchIter {
    fn drop(&mut self) {
        self.stop();
    }
}

impl fmt::Debug for BatchIter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BatchIter")
            .field("position", &self.position)
            .field("count", &self.count)
            .field("workers", &self.threads.len())
            .finish_non_exhaustive()
    }
}

/// State that workers share.
struct Job {
    samples: Samples,
    epoch: Epoch,
    spare: Arc<Mutex<Vec<Batch>>>,
    stopped: AtomicBool,
}

impl Job {
    /// Runs a worker.
    fn work(
        &self,
        positions: impl Iterator<Item = usize>,
        sender: &SyncSender<Result<Batch, DatasetError>>,
    ) {
        let mut scratch = Scratch::default();
        for position in positions {
            let result = self.make(position, &mut scratch);
            let failed = result.is_err();
            if sender.send(result).is_err() || failed {
                return;
            }
        }
    }

    /// Makes the batch at `position`; a panic of the data set becomes an error.
    fn make(&self, position: usize, scratch: &mut Scratch) -> Result<Batch, DatasetError> {
        // Not contained: this panic is a bug, and a panic hook may end the process.
        catch_unwind(AssertUnwindSafe(|| self.fill(position, scratch))).unwrap_or_else(|panic| {
            Err(DatasetError::Panic {
                position,
                message: contained::message(&*panic).to_owned(),
            })
        })
    }

    fn fill(&self, position: usize, scratch: &mut Scratch) -> Result<Batch, DatasetError> {
        let indices = self.epoch.get(position).unwrap_or_default();
        let shape = self.samples.shape();
        let mut batch = self.empty_batch(indices.len(), shape)?;
        let images = batch.images.chunks_exact_mut(shape.len().max(1));
        let copies = self.epoch.copies(position);
        for (place, (&index, image)) in indices.iter().zip(images).enumerate() {
            if self.stopped.load(Ordering::Relaxed) {
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
        Ok(batch)
    }

    /// A batch with room for `images` images, in memory of an earlier one if possible.
    fn empty_batch(&self, images: usize, shape: ImageShape) -> Result<Batch, DatasetError> {
        let mut batch = self.spare().pop().unwrap_or_default();
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

    fn recycle(&self, batch: Batch) {
        let mut spare = self.spare();
        if spare.len() < MAX_SPARE {
            spare.push(batch);
        }
    }

    fn spare(&self) -> std::sync::MutexGuard<'_, Vec<Batch>> {
        self.spare.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
