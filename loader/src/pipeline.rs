//! Worker threads that make batches ahead, and an iterator that returns them in order.
//!
//! [`Loader`](crate::Loader), [`ShardLoader`](crate::ShardLoader) and the image loader of the crate
//! `datasets` are built on it. Use it for a loader of your own.
//!
//! Worker `w` of `n` makes the batches `w, w + n, w + 2n, ..` and sends them through its own
//! bounded channel; the iterator takes from the channels in turn. So the order needs no
//! bookkeeping, the number of batches in memory is bounded, and neither order nor content depends
//! on the number of workers.

use std::fmt;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};

/// Makes the batches of one epoch. All workers share it.
pub trait Maker: Send + Sync + 'static {
    /// A batch.
    type Batch: Send + 'static;
    /// The reason why a batch cannot be made.
    type Error: From<Failure> + Send + 'static;
    /// Memory that each worker keeps from batch to batch.
    type Scratch: Default + Send;

    /// Makes the batch at `position`; `None` if the epoch ends before it.
    ///
    /// Nobody sees the batch once `stop` is set, so this may return anything then.
    ///
    /// # Errors
    /// The reason why the batch cannot be made. It ends the epoch.
    fn make(
        &self,
        position: usize,
        scratch: &mut Self::Scratch,
        stop: &Stop,
    ) -> Result<Option<Self::Batch>, Self::Error>;

    /// Wakes the threads that wait inside [`make`](Self::make), because `stop` is set.
    fn wake(&self) {}
}

/// The reason why workers cannot make a batch.
#[derive(Debug)]
pub enum Failure {
    /// A thread did not start.
    Spawn(io::Error),
    /// [`Maker::make`] panicked.
    Panic {
        /// The position of the batch.
        position: usize,
        /// The message of the panic.
        message: String,
    },
}

/// Whether the workers have to stop.
#[derive(Debug, Default)]
pub struct Stop(AtomicBool);

impl Stop {
    /// Whether nobody will see the current batch.
    #[inline]
    pub fn is_set(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

/// Used batches whose memory can be used again. Clones share them.
#[derive(Debug)]
pub struct Spare<B>(Arc<Mutex<Vec<B>>>);

impl<B> Spare<B> {
    /// Largest number of batches kept; more would hold unused memory.
    const MOST: usize = 16;

    /// A used batch.
    pub fn take(&self) -> Option<B> {
        self.batches().pop()
    }

    /// Keeps a used batch.
    pub fn give(&self, batch: B) {
        let mut batches = self.batches();
        if batches.len() < Self::MOST {
            batches.push(batch);
        }
    }

    fn batches(&self) -> std::sync::MutexGuard<'_, Vec<B>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<B> Default for Spare<B> {
    fn default() -> Self {
        Spare(Arc::default())
    }
}

impl<B> Clone for Spare<B> {
    fn clone(&self) -> Self {
        Spare(Arc::clone(&self.0))
    }
}

/// The batches of one epoch, in order.
///
/// The first error ends it: it comes in its batch's place, and nothing after it. Dropping the
/// pipeline stops the workers as soon as they look at [`Stop`], and waits for that.
pub struct Pipeline<M: Maker> {
    shared: Arc<Shared<M>>,
    count: Option<usize>,
    position: usize,
    ended: bool,
    /// An error from before the first batch.
    failure: Option<Failure>,
    scratch: M::Scratch,
    /// One per worker; empty if `next` does the work.
    receivers: Vec<Receiver<Made<M>>>,
    threads: Vec<JoinHandle<()>>,
}

/// A batch, the end, or an error.
type Made<M> = Result<Option<<M as Maker>::Batch>, <M as Maker>::Error>;

struct Shared<M> {
    maker: M,
    stop: Stop,
}

impl<M: Maker> Pipeline<M> {
    /// Starts `workers` threads. Each makes up to `prefetch` batches ahead, at least 1.
    ///
    /// Without workers, the thread that takes the batches makes them. `count` is the number of
    /// batches, if known.
    pub fn start(maker: M, count: Option<usize>, workers: usize, prefetch: usize) -> Self {
        let stop = Stop::default();
        let mut pipeline = Pipeline {
            shared: Arc::new(Shared { maker, stop }),
            count,
            position: 0,
            ended: false,
            failure: None,
            scratch: M::Scratch::default(),
            receivers: Vec::new(),
            threads: Vec::new(),
        };
        let count = count.unwrap_or(usize::MAX);
        pipeline.spawn(workers.min(count), count, prefetch.max(1));
        pipeline
    }

    /// Makes the batches.
    pub fn maker(&self) -> &M {
        &self.shared.maker
    }

    fn spawn(&mut self, workers: usize, count: usize, prefetch: usize) {
        for worker in 0..workers {
            // The batch that waits in `send` counts too.
            let (sender, receiver) = sync_channel(prefetch - 1);
            let shared = Arc::clone(&self.shared);
            let started = thread::Builder::new()
                .name(format!("loader-{worker}"))
                .spawn(move || shared.work((worker..count).step_by(workers), &sender));
            match started {
                Ok(thread) => self.threads.push(thread),
                Err(source) => {
                    self.failure = Some(Failure::Spawn(source));
                    return;
                }
            }
            self.receivers.push(receiver);
        }
    }

    fn take(&mut self) -> Made<M> {
        if let Some(failure) = self.failure.take() {
            return Err(failure.into());
        }
        let position = self.position;
        if self.receivers.is_empty() {
            return self.shared.make(position, &mut self.scratch);
        }
        let worker = position % self.receivers.len();
        let received = self.receivers.get(worker).map(Receiver::recv);
        match received {
            Some(Ok(made)) => made,
            _ => Err(Failure::Panic {
                position,
                message: "a loader thread ended unexpectedly".into(),
            }
            .into()),
        }
    }

    fn stop(&mut self) {
        self.ended = true;
        self.shared.stop.0.store(true, Ordering::Relaxed);
        self.shared.maker.wake();
        self.receivers.clear();
        for thread in self.threads.drain(..) {
            // Its panics were caught and returned as errors.
            let _ = thread.join();
        }
    }
}

impl<M: Maker> Iterator for Pipeline<M> {
    type Item = Result<M::Batch, M::Error>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.ended || self.count == Some(self.position) {
            return None;
        }
        let made = self.take().transpose();
        self.position += 1;
        if !matches!(made, Some(Ok(_))) {
            self.stop();
        }
        made
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        if self.ended {
            return (0, Some(0));
        }
        match self.count {
            // An error may end the iterator early.
            Some(count) => (
                count.saturating_sub(self.position).min(1),
                Some(count - self.position),
            ),
            None => (0, None),
        }
    }
}

impl<M: Maker> std::iter::FusedIterator for Pipeline<M> {}

impl<M: Maker> Drop for Pipeline<M> {
    fn drop(&mut self) {
        self.stop();
    }
}

impl<M: Maker> fmt::Debug for Pipeline<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pipeline")
            .field("position", &self.position)
            .field("count", &self.count)
            .field("workers", &self.threads.len())
            .finish_non_exhaustive()
    }
}

impl<M: Maker> Shared<M> {
    /// Runs a worker.
    fn work(&self, positions: impl Iterator<Item = usize>, sender: &SyncSender<Made<M>>) {
        let mut scratch = M::Scratch::default();
        for position in positions {
            let made = self.make(position, &mut scratch);
            let last = !matches!(made, Ok(Some(_)));
            if sender.send(made).is_err() || last {
                return;
            }
        }
    }

    /// Makes the batch at `position`; a panic becomes an error.
    fn make(&self, position: usize, scratch: &mut M::Scratch) -> Made<M> {
        // Not contained: this panic is a bug, and a panic hook may end the process.
        catch_unwind(AssertUnwindSafe(|| {
            self.maker.make(position, scratch, &self.stop)
        }))
        .unwrap_or_else(|panic| {
            let message = contained::message(&*panic).to_owned();
            Err(Failure::Panic { position, message }.into())
        })
    }
}
