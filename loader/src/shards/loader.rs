//! Batches of shards: one worker reads at a time, all decode and collate.

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use super::Shards;
use super::cursor::Cursor;
use super::sampler::ShardEpoch;
use super::walk::Sample;
use crate::error::{BoxError, LoaderError};
use crate::loader::{Batches, Collate};
use crate::pipeline::{Maker, Stop};
use crate::random::Stream;

/// Makes batches of type `B` from [`Shards`] of samples of type `I`.
///
/// ```
/// use std::convert::Infallible;
///
/// use loader::{BoxError, Items, ShardLoader, ShardReader, ShardSampler, Shards};
///
/// /// Ten shards of numbers.
/// struct Numbers;
///
/// impl Shards for Numbers {
///     type Item = usize;
///
///     fn shards(&self) -> usize {
///         10
///     }
///
///     fn open(&self, shard: usize) -> Result<Box<dyn ShardReader<Item = usize>>, BoxError> {
///         let numbers = 100 * shard..100 * shard + 8;
///         Ok(Box::new(Items(numbers.map(Ok::<_, Infallible>))))
///     }
/// }
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let decode = |number: usize, random: &mut loader::random::Stream| {
///     Ok::<_, Infallible>(number as f32 + random.unit())
/// };
/// let loader = ShardLoader::new(Numbers, decode, Ok::<_, Infallible>).workers(2);
///
/// // Rank 1 of 2 reads five of the shards, in batches of 16.
/// let sampler = ShardSampler::new(16, 1, 2)?.shuffle(20, 42);
/// let batches: Vec<Vec<f32>> = loader.iter(sampler.epoch(0)).collect::<Result<_, _>>()?;
/// assert_eq!(batches.iter().map(Vec::len).collect::<Vec<_>>(), [16, 16, 8]);
/// # Ok(())
/// # }
/// ```
pub struct ShardLoader<I, B> {
    shards: Arc<dyn Shards<Item = I>>,
    make: Arc<Make<I, B>>,
    workers: usize,
    prefetch: usize,
}

/// Makes the batch of a position from its samples; `None` if it is no longer needed.
type Make<I, B> = dyn Fn(usize, Vec<Sample<I>>, &ShardEpoch, &Stop) -> Result<Option<B>, LoaderError>
    + Send
    + Sync;

impl<I: Send + 'static, B: Send + 'static> ShardLoader<I, B> {
    /// Creates a loader that works in the calling thread.
    ///
    /// `decode` turns a sample into an item, and may use random numbers that depend on seed, epoch
    /// and sample only. `collate` makes a batch of the items of a micro-batch.
    pub fn new<S, D, J, E, F, C>(shards: S, decode: D, collate: F) -> Self
    where
        S: Shards<Item = I> + 'static,
        D: Fn(I, &mut Stream) -> Result<J, E> + Send + Sync + 'static,
        E: Into<BoxError>,
        F: Fn(Vec<J>) -> Result<B, C> + Send + Sync + 'static,
        C: Into<BoxError>,
        J: 'static,
    {
        let collate: Box<Collate<J, B>> = Box::new(move |items| collate(items).map_err(Into::into));
        let make = move |number, samples: Vec<Sample<I>>, epoch: &ShardEpoch, stop: &Stop| {
            let mut items = Vec::with_capacity(samples.len());
            for Sample {
                shard,
                position,
                item,
            } in samples
            {
                if stop.is_set() {
                    return Ok(None);
                }
                let item = decode(item, &mut epoch.random(shard, position));
                items.push(item.map_err(|error| LoaderError::Decode {
                    shard,
                    position,
                    source: error.into().into(),
                })?);
            }
            let wrong = |error: BoxError| LoaderError::Collate {
                position: number,
                source: error.into(),
            };
            collate(items).map(Some).map_err(wrong)
        };
        ShardLoader {
            shards: Arc::new(shards),
            make: Arc::new(make),
            workers: 0,
            prefetch: 2,
        }
    }

    /// Sets the number of worker threads; 0 means the calling thread.
    ///
    /// One worker reads at a time. All decode and collate.
    pub fn workers(mut self, workers: usize) -> Self {
        self.workers = workers;
        self
    }

    /// Sets how many finished batches (at least 1, default 2) each worker may be ahead.
    pub fn prefetch(mut self, batches: usize) -> Self {
        self.prefetch = batches.max(1);
        self
    }

    /// The batches of `epoch`, in order. Threads start here and end with the iterator.
    pub fn iter(&self, epoch: ShardEpoch) -> Batches<B> {
        let turns = Mutex::new(Turns {
            cursor: Cursor::new(Arc::clone(&self.shards), epoch.clone()),
            next: 0,
            ended: false,
        });
        let job = Job {
            turns,
            turn: Condvar::new(),
            make: Arc::clone(&self.make),
            epoch,
        };
        Batches::start(job, None, self.workers, self.prefetch)
    }
}

impl<I, B> fmt::Debug for ShardLoader<I, B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ShardLoader")
            .field("shards", &self.shards.shards())
            .field("workers", &self.workers)
            .field("prefetch", &self.prefetch)
            .finish_non_exhaustive()
    }
}

/// Makes the batches of an epoch.
struct Job<I, B> {
    turns: Mutex<Turns<I>>,
    /// Wakes the workers that wait for their turn to read.
    turn: Condvar,
    make: Arc<Make<I, B>>,
    epoch: ShardEpoch,
}

/// Workers read in the order of the batches.
struct Turns<I> {
    cursor: Cursor<I>,
    /// Position of the batch that is read next.
    next: usize,
    /// After the last batch, an error or a panic.
    ended: bool,
}

impl<I, B> Job<I, B> {
    /// The samples of the batch at `position`; none after the end.
    fn read(&self, position: usize, stop: &Stop) -> Result<Vec<Sample<I>>, LoaderError> {
        let mut turns = self.turns();
        while turns.next != position && !turns.ended && !stop.is_set() {
            let waited = self.turn.wait(turns);
            turns = waited.unwrap_or_else(PoisonError::into_inner);
        }
        if turns.ended || stop.is_set() {
            return Ok(Vec::new());
        }
        // The other workers must not wait for a worker that panics.
        let read = catch_unwind(AssertUnwindSafe(|| turns.cursor.batch()));
        turns.next += 1;
        turns.ended = !matches!(&read, Ok(Ok(samples)) if !samples.is_empty());
        drop(turns);
        self.turn.notify_all();
        read.unwrap_or_else(|panic| resume_unwind(panic))
    }

    fn turns(&self) -> MutexGuard<'_, Turns<I>> {
        self.turns.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<I: Send + 'static, B: Send + 'static> Maker for Job<I, B> {
    type Batch = B;
    type Error = LoaderError;
    type Scratch = ();

    fn make(&self, position: usize, (): &mut (), stop: &Stop) -> Result<Option<B>, LoaderError> {
        let samples = self.read(position, stop)?;
        if samples.is_empty() {
            return Ok(None);
        }
        (self.make)(position, samples, &self.epoch, stop)
    }

    fn wake(&self) {
        // A worker that has seen that it goes on holds the lock until it waits.
        drop(self.turns());
        self.turn.notify_all();
    }
}
