//! A Burn `DataLoader` with the samplers and workers of the crate `loader`.

use std::convert::Infallible;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use burn_core::data::dataloader::batcher::Batcher;
use burn_core::data::dataloader::{DataLoader, DataLoaderIterator, Progress};
use burn_core::data::dataset::{Dataset, DatasetError};
use burn_core::tensor::Device;
use loader::{Batches, Epoch, EvalSampler, Loader, TrainSampler};

/// This rank's batches as a `DataLoader` of Burn, from a Burn `Dataset` and `Batcher`.
///
/// Each call of `iter` begins the next epoch of a [`TrainSampler`]: a global batch has the same
/// samples for any number of ranks. It holds the share of one rank already.
///
/// ```
/// use std::sync::Arc;
///
/// use burn_core::data::dataloader::DataLoader;
/// use burn_core::data::dataloader::batcher::Batcher;
/// use burn_core::data::dataset::InMemDataset;
/// use burn_core::tensor::{Device, Int, Tensor, TensorData};
/// use learner::SampledLoader;
/// use loader::TrainSampler;
///
/// struct Numbers;
///
/// impl Batcher<i32, Tensor<1, Int>> for Numbers {
///     fn batch(&self, items: Vec<i32>, device: &Device) -> Tensor<1, Int> {
///         let len = items.len();
///         Tensor::from_data(TensorData::new(items, [len]), device)
///     }
/// }
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let dataset = InMemDataset::new((0..100).collect());
/// // Rank 0 of 2, batches of 16 on each.
/// let sampler = TrainSampler::new(100, 32, 16, 0, 2, 42)?;
/// let loader = SampledLoader::train(dataset, Numbers, sampler, &Device::flex()).workers(2);
/// let loader: Arc<dyn DataLoader<Tensor<1, Int>>> = Arc::new(loader);
/// assert_eq!(loader.num_items(), 48);
/// for batch in loader.iter() {
///     assert_eq!(batch?.dims(), [16]);
/// }
/// # Ok(())
/// # }
/// ```
pub struct SampledLoader<I, O> {
    dataset: Arc<dyn Dataset<I>>,
    batcher: Arc<dyn Batcher<I, O>>,
    sampler: Sampler,
    device: Device,
    workers: usize,
    /// Number of the next epoch.
    next: Arc<AtomicUsize>,
    /// The items of an epoch that are used, in whole batches.
    part: Range<usize>,
}

#[derive(Clone)]
enum Sampler {
    Train(TrainSampler),
    Eval(EvalSampler),
}

impl Sampler {
    fn epoch(&self, number: usize) -> Epoch {
        match self {
            Sampler::Train(sampler) => sampler.epoch(number),
            Sampler::Eval(sampler) => sampler.epoch(),
        }
    }
}

impl<I, O> SampledLoader<I, O> {
    /// Batches for training: each is a micro-batch of the sampler.
    pub fn train(
        dataset: impl Dataset<I> + 'static,
        batcher: impl Batcher<I, O> + 'static,
        sampler: TrainSampler,
        device: &Device,
    ) -> Self {
        Self::new(dataset, batcher, Sampler::Train(sampler), device)
    }

    /// Batches for validation: every sample of the data set reaches one rank.
    pub fn valid(
        dataset: impl Dataset<I> + 'static,
        batcher: impl Batcher<I, O> + 'static,
        sampler: EvalSampler,
        device: &Device,
    ) -> Self {
        Self::new(dataset, batcher, Sampler::Eval(sampler), device)
    }

    fn new(
        dataset: impl Dataset<I> + 'static,
        batcher: impl Batcher<I, O> + 'static,
        sampler: Sampler,
        device: &Device,
    ) -> Self {
        let part = 0..sampler.epoch(0).samples();
        SampledLoader {
            dataset: Arc::new(dataset),
            batcher: Arc::new(batcher),
            sampler,
            device: device.clone(),
            workers: 0,
            next: Arc::default(),
            part,
        }
    }

    /// Sets the number of worker threads; 0, the default, means the calling thread.
    pub fn workers(mut self, workers: usize) -> Self {
        self.workers = workers;
        self
    }

    /// The same loader with other batches, which counts its epochs with this one.
    fn with(&self, device: Device, part: Range<usize>) -> Self {
        SampledLoader {
            dataset: Arc::clone(&self.dataset),
            batcher: Arc::clone(&self.batcher),
            sampler: self.sampler.clone(),
            device,
            workers: self.workers,
            next: Arc::clone(&self.next),
            part,
        }
    }
}

impl<I: Send + 'static, O: Send + 'static> DataLoader<O> for SampledLoader<I, O> {
    fn iter<'a>(&'a self) -> Box<dyn DataLoaderIterator<O> + 'a> {
        let epoch = self
            .sampler
            .epoch(self.next.fetch_add(1, Ordering::Relaxed));
        let (batcher, device) = (Arc::clone(&self.batcher), self.device.clone());
        let collate = move |items| Ok::<_, Infallible>(batcher.batch(items, &device));
        let loader = Loader::new(Arc::clone(&self.dataset), collate);
        Box::new(SampledBatches {
            loader: loader.workers(self.workers),
            lens: epoch.iter().map(<[usize]>::len).collect(),
            epoch,
            batches: None,
            position: 0,
            seen: 0,
            part: self.part.clone(),
        })
    }

    fn num_items(&self) -> usize {
        self.part.len()
    }

    fn to_device(&self, device: &Device) -> Arc<dyn DataLoader<O>> {
        Arc::new(self.with(device.clone(), self.part.clone()))
    }

    fn slice(&self, start: usize, end: usize) -> Arc<dyn DataLoader<O>> {
        let place = |at: usize| self.part.start.saturating_add(at).min(self.part.end);
        Arc::new(self.with(self.device.clone(), place(start)..place(end)))
    }
}

/// The batches of one epoch. Workers start with the first one.
struct SampledBatches<I, O> {
    loader: Loader<I, O>,
    epoch: Epoch,
    /// Items of each batch.
    lens: Vec<usize>,
    batches: Option<Batches<O>>,
    /// Number of the next batch.
    position: usize,
    /// Items of the batches before it.
    seen: usize,
    part: Range<usize>,
}

impl<I: Send + 'static, O: Send + 'static> Iterator for SampledBatches<I, O> {
    type Item = Result<O, DatasetError>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            let len = *self.lens.get(self.position)?;
            let first = self.seen;
            if first >= self.part.end {
                return None;
            }
            let batches = self
                .batches
                .get_or_insert_with(|| self.loader.iter(self.epoch.clone()));
            let batch = batches.next()?;
            self.position += 1;
            self.seen += len;
            if batch.is_err() || first >= self.part.start {
                return Some(batch.map_err(DatasetError::new));
            }
        }
    }
}

impl<I: Send + 'static, O: Send + 'static> DataLoaderIterator<O> for SampledBatches<I, O> {
    fn progress(&self) -> Progress {
        let seen = self.seen.clamp(self.part.start, self.part.end) - self.part.start;
        Progress::new(seen, self.part.len(), Some("items".into()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use burn_core::data::dataset::InMemDataset;
    use burn_core::data::dataset::transform::PartialDataset;

    struct Keep;

    impl Batcher<usize, Vec<usize>> for Keep {
        fn batch(&self, items: Vec<usize>, _: &Device) -> Vec<usize> {
            items
        }
    }

    type Batch = Arc<dyn DataLoader<Vec<usize>>>;

    fn numbers() -> InMemDataset<usize> {
        InMemDataset::new((0..50).collect())
    }

    fn train(rank: usize, size: usize, workers: usize) -> Batch {
        let sampler = TrainSampler::new(50, 12, 12 / size, rank, size, 42).unwrap();
        let loader = SampledLoader::train(numbers(), Keep, sampler, &Device::flex());
        Arc::new(loader.workers(workers))
    }

    fn epoch(loader: &Batch) -> Vec<Vec<usize>> {
        loader.iter().collect::<Result<_, _>>().unwrap()
    }

    #[test]
    fn every_iteration_is_the_next_epoch_of_the_sampler() {
        let sampler = TrainSampler::new(50, 12, 12, 0, 1, 42).unwrap();
        for workers in [0, 2] {
            let loader = train(0, 1, workers);
            for number in 0..3 {
                assert!(sampler.epoch(number).iter().eq(epoch(&loader)));
            }
            // An epoch that is not read counts too: so a run resumes.
            drop(loader.iter());
            let moved = loader.to_device(&Device::flex());
            assert!(sampler.epoch(4).iter().eq(epoch(&moved)));
        }
    }

    #[test]
    fn ranks_share_global_batches_and_validation() {
        let ranks = [train(0, 2, 1), train(1, 2, 0)];
        assert_eq!(ranks[0].num_items(), 24);
        let [first, second] = ranks.map(|rank| epoch(&rank));
        let both = first.into_iter().zip(second).map(|(a, b)| [a, b].concat());
        assert!(both.eq(epoch(&train(0, 1, 0))));

        let of = |rank| -> Batch {
            let sampler = EvalSampler::new(45, 10, rank, 2).unwrap();
            let part = PartialDataset::new(numbers(), 5, 50);
            Arc::new(SampledLoader::valid(part, Keep, sampler, &Device::flex()))
        };
        for _ in 0..2 {
            let all = [of(0), of(1)].map(|rank| epoch(&rank).concat()).concat();
            assert!(all.into_iter().eq(5..50));
        }
    }

    #[test]
    fn slices_and_progress_count_items() {
        let sampler = || EvalSampler::new(45, 10, 0, 1).unwrap();
        let loader = SampledLoader::valid(numbers(), Keep, sampler(), &Device::flex());
        let slice = loader.slice(20, 45);
        assert_eq!(slice.num_items(), 25);
        let mut batches = slice.iter();
        assert_eq!(batches.progress().items_processed, 0);
        assert_eq!(batches.next().unwrap().unwrap()[0], 20);
        assert_eq!(batches.progress().items_processed, 10);
        assert_eq!(batches.by_ref().count(), 2);
        let progress = batches.progress();
        assert_eq!((progress.items_processed, progress.items_total), (25, 25));
        // Slices share the batches.
        let parts = [loader.slice(0, 15), loader.slice(15, 45)];
        let all: Vec<usize> = parts.iter().flat_map(|part| epoch(part).concat()).collect();
        assert!(all.into_iter().eq(0..45));
    }

    #[test]
    fn an_error_of_the_data_set_is_returned() {
        let sampler = EvalSampler::new(60, 10, 0, 1).unwrap();
        let loader = SampledLoader::valid(numbers(), Keep, sampler, &Device::flex());
        let error = loader.iter().find_map(Result::err).unwrap().to_string();
        assert!(error.contains("item 50 does not exist"), "{error}");
    }
}
