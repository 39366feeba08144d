//! Batches of any Burn data set.

use std::error::Error;
use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;

use burn_dataset::Dataset;

use crate::error::{BoxError, LoaderError};
use crate::pipeline::{Maker, Pipeline, Stop};
use crate::random::{Purpose, Stream};
use crate::sampler::Epoch;

/// Makes batches from a Burn data set: items of type `I` become batches of type `B`.
///
/// ```
/// use burn_dataset::InMemDataset;
/// use burn_dataset::transform::{Mapper, MapperDataset};
/// use loader::{Loader, LoaderError, Padded, Padding, TrainSampler};
///
/// struct Bytes;
///
/// impl Mapper<String, Vec<u8>> for Bytes {
///     fn map(&self, item: &String) -> Vec<u8> {
///         item.bytes().collect()
///     }
/// }
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let lines = InMemDataset::new((1..=100).map(|n| "a".repeat(n)).collect());
/// let texts = MapperDataset::new(lines, Bytes);
///
/// let padding = Padding::new(0).at_most(64);
/// let loader = Loader::new(texts, move |items| padding.pad(&items))
///     .workers(2)
///     .augment(42, |mut text: Vec<u8>, random| {
///         let start = random.below(text.len() as u64) as usize;
///         text.rotate_left(start);
///         text
///     });
///
/// let sampler = TrainSampler::new(loader.len(), 16, 8, 0, 1, 42)?;
/// for batch in loader.iter(sampler.epoch(3).from_step(5)) {
///     let batch: Padded<u8> = batch?;
///     assert_eq!(batch.values.len(), 8 * batch.width);
/// }
/// # Ok(())
/// # }
/// ```
///
/// Panics of the data set and of the closures become errors, unless the program aborts on panics.
pub struct Loader<I, B> {
    items: Arc<dyn AnyDataset<I>>,
    collate: Arc<Collate<I, B>>,
    augment: Option<(u64, Arc<Augment<I>>)>,
    workers: usize,
    prefetch: usize,
    whole_batches: bool,
}

/// Makes a batch of items.
pub(crate) type Collate<I, B> = dyn Fn(Vec<I>) -> Result<B, BoxError> + Send + Sync;

/// Changes an item at random.
type Augment<I> = dyn Fn(I, &mut Stream) -> I + Send + Sync;

impl<I: Send + 'static, B: Send + 'static> Loader<I, B> {
    /// Creates a loader that works in the calling thread.
    ///
    /// `collate` makes a batch of the items of a micro-batch, which are in order. With a `Batcher`
    /// of Burn: `move |items| Ok::<_, Infallible>(batcher.batch(items, &device))`.
    pub fn new<D, E, F, C>(dataset: D, collate: F) -> Self
    where
        D: Dataset<I, E> + 'static,
        E: Error + Send + Sync + 'static,
        F: Fn(Vec<I>) -> Result<B, C> + Send + Sync + 'static,
        C: Into<BoxError>,
    {
        Loader {
            items: Arc::new(Erased(dataset, PhantomData)),
            collate: Arc::new(move |items| collate(items).map_err(Into::into)),
            augment: None,
            workers: 0,
            prefetch: 2,
            whole_batches: false,
        }
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

    /// Changes every item of a training epoch at random; items of an evaluation stay as they are.
    ///
    /// The random numbers depend on `seed`, the epoch, the item's index and its copy only.
    pub fn augment<F>(mut self, seed: u64, augment: F) -> Self
    where
        F: Fn(I, &mut Stream) -> I + Send + Sync + 'static,
    {
        self.augment = Some((seed, Arc::new(augment)));
        self
    }

    /// Reads the items of a micro-batch by one call of `get_many` instead of one `get` each.
    ///
    /// Faster for databases. Workers then stop after their current batch, not their current item.
    pub fn read_whole_batches(mut self) -> Self {
        self.whole_batches = true;
        self
    }

    /// Number of items in the data set.
    pub fn len(&self) -> usize {
        self.items.len()
    }

    /// Whether the data set has no item.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The batches of `epoch`, in order. Threads start here and end with the iterator.
    pub fn iter(&self, epoch: Epoch) -> Batches<B> {
        let count = epoch.batches();
        let job = Job {
            items: Arc::clone(&self.items),
            collate: Arc::clone(&self.collate),
            augment: self.augment.clone(),
            whole_batches: self.whole_batches,
            epoch,
        };
        Batches::start(job, Some(count), self.workers, self.prefetch)
    }
}

impl<I, B> fmt::Debug for Loader<I, B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Loader")
            .field("items", &self.items.len())
            .field("workers", &self.workers)
            .field("prefetch", &self.prefetch)
            .finish_non_exhaustive()
    }
}

/// The batches of one epoch; made by [`Loader::iter`] and
/// [`ShardLoader::iter`](crate::ShardLoader::iter).
///
/// The first error ends it: it comes in its batch's place, and nothing after it. Dropping the
/// iterator stops the workers after their current item, and waits for that.
pub struct Batches<B>(Box<dyn Iterator<Item = Result<B, LoaderError>> + Send>);

impl<B: Send + 'static> Batches<B> {
    pub(crate) fn start<M>(maker: M, count: Option<usize>, workers: usize, prefetch: usize) -> Self
    where
        M: Maker<Batch = B, Error = LoaderError>,
        M::Scratch: 'static,
    {
        Batches(Box::new(Pipeline::start(maker, count, workers, prefetch)))
    }
}

impl<B> Iterator for Batches<B> {
    type Item = Result<B, LoaderError>;

    fn next(&mut self) -> Option<Self::Item> {
        self.0.next()
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        self.0.size_hint()
    }
}

impl<B> std::iter::FusedIterator for Batches<B> {}

impl<B> fmt::Debug for Batches<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Batches")
            .field("left", &self.size_hint())
            .finish_non_exhaustive()
    }
}

/// A data set whose error has no type.
trait AnyDataset<I>: Send + Sync {
    fn len(&self) -> usize;
    fn get(&self, index: usize) -> Result<I, BoxError>;
    fn get_many(&self, indices: Vec<usize>) -> Result<Vec<I>, BoxError>;
}

struct Erased<D, E>(D, PhantomData<fn() -> E>);

impl<I, D, E> AnyDataset<I> for Erased<D, E>
where
    D: Dataset<I, E>,
    E: Error + Send + Sync + 'static,
{
    fn len(&self) -> usize {
        self.0.len()
    }

    fn get(&self, index: usize) -> Result<I, BoxError> {
        Ok(self.0.get(index)?)
    }

    fn get_many(&self, indices: Vec<usize>) -> Result<Vec<I>, BoxError> {
        Ok(self.0.get_many(indices)?)
    }
}

/// Makes the batches of an epoch.
struct Job<I, B> {
    items: Arc<dyn AnyDataset<I>>,
    collate: Arc<Collate<I, B>>,
    augment: Option<(u64, Arc<Augment<I>>)>,
    whole_batches: bool,
    epoch: Epoch,
}

impl<I: Send + 'static, B: Send + 'static> Maker for Job<I, B> {
    type Batch = B;
    type Error = LoaderError;
    type Scratch = ();

    fn make(&self, position: usize, (): &mut (), stop: &Stop) -> Result<Option<B>, LoaderError> {
        let Some(indices) = self.epoch.get(position) else {
            return Ok(None);
        };
        let len = self.items.len();
        if let Some(&index) = indices.iter().find(|&&index| index >= len) {
            return Err(LoaderError::Index { index, len });
        }
        let Some(items) = self.read(indices, stop)? else {
            return Ok(None);
        };
        let items = self.augmented(items, position, indices);
        let batch = (self.collate)(items);
        let wrong = |error: BoxError| LoaderError::Collate {
            position,
            source: error.into(),
        };
        batch.map(Some).map_err(wrong)
    }
}

impl<I, B> Job<I, B> {
    /// Items of these indices; `None` if they are no longer needed.
    fn read(&self, indices: &[usize], stop: &Stop) -> Result<Option<Vec<I>>, LoaderError> {
        let wrong = |index| {
            move |error: BoxError| LoaderError::Item {
                index,
                source: error.into(),
            }
        };
        if !self.whole_batches {
            let mut items = Vec::with_capacity(indices.len());
            for &index in indices {
                if stop.is_set() {
                    return Ok(None);
                }
                items.push(self.items.get(index).map_err(wrong(index))?);
            }
            return Ok(Some(items));
        }
        let first = indices.first().copied().unwrap_or_default();
        let items = self
            .items
            .get_many(indices.to_vec())
            .map_err(wrong(first))?;
        match (items.len(), indices.len()) {
            (found, asked) if found != asked => Err(LoaderError::Count { found, asked }),
            _ => Ok(Some(items)),
        }
    }

    fn augmented(&self, items: Vec<I>, position: usize, indices: &[usize]) -> Vec<I> {
        let (Some((seed, augment)), Some(epoch)) = (&self.augment, self.epoch.number()) else {
            return items;
        };
        let copies = self.epoch.copies(position);
        let change = |(place, (item, &index)): (usize, (I, &usize))| {
            let copy = copies.get(place).copied().unwrap_or(0);
            let mut random = Stream::of_sample(Purpose::Sample, *seed, epoch, index, copy);
            augment(item, &mut random)
        };
        items
            .into_iter()
            .zip(indices)
            .enumerate()
            .map(change)
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::time::{Duration, Instant};

    use burn_dataset::transform::{PartialDataset, SelectionDataset};
    use burn_dataset::{DatasetError, InMemDataset};

    use super::*;
    use crate::within::within;
    use crate::{EvalSampler, TrainSampler};

    /// A hundred numbers; can be made to fail.
    #[derive(Default)]
    struct Numbers {
        reads: AtomicUsize,
        fails_at: Option<usize>,
        panics_at: Option<usize>,
        forgets: bool,
        delay: Duration,
    }

    impl Dataset<usize> for Numbers {
        fn get(&self, index: usize) -> Result<usize, DatasetError> {
            self.reads.fetch_add(1, Ordering::SeqCst);
            std::thread::sleep(self.delay);
            assert_ne!(self.panics_at, Some(index), "no item {index}");
            match self.fails_at {
                Some(at) if at == index => Err(DatasetError::new(std::fmt::Error)),
                _ => Ok(index),
            }
        }

        fn get_many(&self, indexes: Vec<usize>) -> Result<Vec<usize>, DatasetError> {
            let kept = indexes.len() - usize::from(self.forgets);
            let kept = indexes.into_iter().take(kept);
            kept.map(|index| self.get(index)).collect()
        }

        fn len(&self) -> usize {
            100
        }
    }

    fn as_they_are(items: Vec<usize>) -> Result<Vec<usize>, Infallible> {
        Ok(items)
    }

    /// All 100 numbers in order, in ten batches of ten.
    fn in_order() -> Epoch {
        let sampler = TrainSampler::new(100, 10, 10, 0, 1, 0).unwrap();
        sampler.sequential().epoch(0)
    }

    fn collect<I: Send + 'static, B: Send + 'static>(
        loader: &Loader<I, B>,
        epoch: Epoch,
    ) -> Vec<B> {
        loader.iter(epoch).collect::<Result<_, _>>().unwrap()
    }

    #[test]
    fn workers_and_ranks_change_nothing() {
        within(30, || {
            let loader = |workers| {
                Loader::new(Numbers::default(), as_they_are)
                    .workers(workers)
                    .prefetch(3)
                    .augment(9, |item, random| 1000 * item + random.below(1000) as usize)
            };
            let sampler = |rank, size| {
                let sampler = TrainSampler::new(100, 24, 4, rank, size, 5).unwrap();
                sampler.repeat(2)
            };
            let expected = collect(&loader(0), sampler(0, 1).epoch(2));
            assert_eq!(expected.len(), 24);
            // Copies of an item are augmented differently.
            assert_eq!(expected[0][0] / 1000, expected[0][1] / 1000);
            assert_ne!(expected[0][0], expected[0][1]);
            for workers in [1, 2, 5, 100] {
                let epoch = sampler(0, 1).epoch(2);
                assert_eq!(collect(&loader(workers), epoch), expected);
                let whole = loader(workers).read_whole_batches();
                assert_eq!(collect(&whole, sampler(0, 1).epoch(2)), expected);
            }
            // Two ranks take the first and second half of each step's six micro-batches.
            let ranks = [0, 1].map(|rank| collect(&loader(2), sampler(rank, 2).epoch(2)));
            let of_step = |step: usize| {
                ranks
                    .iter()
                    .flat_map(move |rank| &rank[3 * step..3 * step + 3])
            };
            assert!((0..4).flat_map(of_step).eq(&expected));
            let resumed = collect(&loader(2), sampler(0, 1).epoch(2).from_step(3));
            assert_eq!(resumed, expected[18..]);
            assert_ne!(collect(&loader(0), sampler(0, 1).epoch(3)), expected);
        });
    }

    #[test]
    fn evaluations_are_not_augmented_and_count_every_item_once() {
        let loader = Loader::new(Numbers::default(), as_they_are)
            .augment(1, |_, _| panic!("augmented"))
            .workers(2);
        let of = |rank| EvalSampler::new(loader.len(), 7, rank, 3).unwrap().epoch();
        let all = (0..3).flat_map(|rank| collect(&loader, of(rank)));
        assert!(all.flatten().eq(0..100));
    }

    #[test]
    fn data_sets_and_transforms_of_burn_work_as_they_are() {
        let words = ["a", "b", "c", "d", "e", "f"].map(String::from).to_vec();
        let part = PartialDataset::new(InMemDataset::new(words), 1, 6);
        let selection = SelectionDataset::from_indices_checked(part, vec![4, 0, 2, 2]);
        let concat = |items: Vec<String>| Ok::<_, Infallible>(items.concat());
        let epoch = || EvalSampler::new(4, 3, 0, 1).unwrap().epoch();
        let loader = Loader::new(selection, concat);
        assert_eq!(collect(&loader, epoch()), ["fbd", "d"]);
        let shared: Arc<dyn Dataset<usize>> = Arc::new(Numbers::default());
        let loader = Loader::new(shared, as_they_are);
        assert_eq!(collect(&loader, epoch()), [vec![0, 1, 2], vec![3]]);
    }

    /// The number of good batches and the error after them.
    fn until_error(
        numbers: impl Fn() -> Numbers,
        workers: usize,
        change: impl FnOnce(Loader<usize, Vec<usize>>) -> Loader<usize, Vec<usize>>,
    ) -> (usize, LoaderError) {
        let loader = change(Loader::new(numbers(), as_they_are).workers(workers));
        within(20, move || {
            let mut batches = loader.iter(in_order());
            for good in 0.. {
                match batches.next().expect("an error") {
                    Ok(batch) => assert_eq!(batch[0], 10 * good),
                    Err(error) => {
                        assert!(batches.next().is_none(), "it goes on after an error");
                        assert_eq!(batches.size_hint(), (0, Some(0)));
                        return (good, error);
                    }
                }
            }
            unreachable!("the epoch has an end")
        })
    }

    #[test]
    fn errors_come_at_their_place() {
        for workers in [0, 1, 2, 3, 10] {
            let failing = || Numbers {
                fails_at: Some(57),
                ..Numbers::default()
            };
            let (good, error) = until_error(failing, workers, |loader| loader);
            assert_eq!(good, 5);
            assert!(
                matches!(error, LoaderError::Item { index: 57, .. }),
                "{error}"
            );
            let (good, error) = until_error(failing, workers, Loader::read_whole_batches);
            assert_eq!(good, 5);
            assert!(
                matches!(error, LoaderError::Item { index: 50, .. }),
                "{error}"
            );

            let panicking = || Numbers {
                panics_at: Some(57),
                ..Numbers::default()
            };
            let (good, error) = until_error(panicking, workers, |loader| loader);
            assert_eq!(good, 5);
            let LoaderError::Panic {
                position: 5,
                message,
            } = error
            else {
                panic!("{error}");
            };
            assert!(message.contains("no item 57"), "{message}");

            let forgetting = || Numbers {
                forgets: true,
                ..Numbers::default()
            };
            let (good, error) = until_error(forgetting, workers, Loader::read_whole_batches);
            let count = matches!(
                error,
                LoaderError::Count {
                    found: 9,
                    asked: 10
                }
            );
            assert!(good == 0 && count, "{error}");
        }
    }

    #[test]
    fn errors_and_panics_of_closures_are_returned() {
        for workers in [0, 2] {
            let collate = |items: Vec<usize>| match items[0] {
                30 => Err("no batch"),
                _ => Ok(items),
            };
            let loader = Loader::new(Numbers::default(), collate).workers(workers);
            let error = loader.iter(in_order()).find_map(Result::err).unwrap();
            assert_eq!(
                error.to_string(),
                "cannot make batch 3 of the epoch: no batch"
            );
            let loader = Loader::new(Numbers::default(), as_they_are).workers(workers);
            let loader = loader.augment(0, |item, _| match item {
                77 => panic!("no change"),
                _ => item,
            });
            let error = loader.iter(in_order()).find_map(Result::err).unwrap();
            let text = "panic while making batch 7 of the epoch: no change";
            assert_eq!(error.to_string(), text);
        }
    }

    #[test]
    fn a_sampler_of_another_length_is_noticed() {
        for whole in [false, true] {
            let mut loader = Loader::new(InMemDataset::new(vec![0; 10]), as_they_are);
            loader.whole_batches = whole;
            let epoch = EvalSampler::new(11, 4, 0, 1).unwrap().epoch();
            let error = loader.iter(epoch).find_map(Result::err).unwrap();
            assert!(matches!(error, LoaderError::Index { index: 10, len: 10 }));
        }
    }

    #[test]
    fn dropping_the_iterator_stops_the_workers() {
        let numbers = Arc::new(Numbers {
            delay: Duration::from_millis(40),
            ..Numbers::default()
        });
        let shared = Arc::clone(&numbers);
        let waited = within(20, move || {
            let loader = Loader::new(shared, as_they_are).workers(4);
            let mut batches = loader.iter(in_order());
            batches.next().unwrap().unwrap();
            let start = Instant::now();
            drop(batches);
            start.elapsed()
        });
        // A batch takes 400 ms, an item 40.
        assert!(waited < Duration::from_millis(300), "{waited:?}");
        assert_eq!(Arc::strong_count(&numbers), 1, "a worker is still there");
    }
}
