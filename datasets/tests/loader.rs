//! A loader's batches: order, content, errors, and early drops of the iterator.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use datasets::{
    Batch, Dataset, DatasetError, Digits, Epoch, EvalSampler, ImageShape, Loader, Normalization,
    Split, TrainSampler,
};

/// Ends the test if `work` hangs.
fn within<T: Send + 'static>(seconds: u64, work: impl FnOnce() -> T + Send + 'static) -> T {
    let (sender, receiver) = mpsc::channel();
    let thread = thread::spawn(move || sender.send(work()).ok());
    match receiver.recv_timeout(Duration::from_secs(seconds)) {
        Ok(result) => result,
        Err(mpsc::RecvTimeoutError::Timeout) => panic!("still running after {seconds} s"),
        Err(mpsc::RecvTimeoutError::Disconnected) => {
            std::panic::resume_unwind(thread.join().unwrap_err())
        }
    }
}

/// Images of 2x3 whose bytes are their index; can be told to fail.
#[derive(Default)]
struct Numbers {
    reads: AtomicUsize,
    fails_at: Option<usize>,
    panics_at: Option<usize>,
    label_at: Option<(usize, u32)>,
    delay: Duration,
    std: Option<f32>,
    classes: Vec<String>,
}

impl Numbers {
    fn new() -> Self {
        Numbers {
            classes: (0..100).map(|class| class.to_string()).collect(),
            ..Numbers::default()
        }
    }
}

impl Dataset for Numbers {
    fn len(&self) -> usize {
        100
    }

    fn shape(&self) -> ImageShape {
        ImageShape {
            channels: 1,
            height: 2,
            width: 3,
        }
    }

    fn class_names(&self) -> &[String] {
        &self.classes
    }

    fn normalization(&self) -> Normalization {
        Normalization {
            mean: vec![0.0],
            std: vec![self.std.unwrap_or(1.0 / 255.0)],
        }
    }

    fn read(&self, index: usize, image: &mut [u8]) -> Result<u32, DatasetError> {
        self.reads.fetch_add(1, Ordering::SeqCst);
        thread::sleep(self.delay);
        assert_ne!(self.panics_at, Some(index), "no image {index}");
        if self.fails_at == Some(index) {
            return Err(DatasetError::Index { index, len: 100 });
        }
        image.fill(index as u8);
        match self.label_at {
            Some((at, label)) if at == index => Ok(label),
            _ => Ok(index as u32),
        }
    }
}

/// Returns all 100 images in order, in ten batches of ten.
fn in_order() -> Epoch {
    TrainSampler::new(100, 10, 10, 0, 1, 0)
        .unwrap()
        .sequential()
        .epoch(0)
}

fn collect(loader: &Loader, epoch: Epoch) -> Vec<Batch> {
    loader.iter(epoch).collect::<Result<_, _>>().unwrap()
}

#[test]
fn batches_hold_what_the_sampler_asked_for() {
    for workers in [0, 1, 3] {
        let batches = within(20, move || {
            let loader = Loader::new(Arc::new(Numbers::new()))
                .unwrap()
                .workers(workers);
            collect(&loader, in_order())
        });
        assert_eq!(batches.len(), 10);
        for (number, batch) in batches.iter().enumerate() {
            let indices: Vec<usize> = (10 * number..10 * number + 10).collect();
            assert_eq!(batch.indices, indices);
            assert!(
                batch
                    .labels
                    .iter()
                    .map(|&l| l as usize)
                    .eq(indices.iter().copied())
            );
            assert_eq!(batch.shape.len(), 6);
            for (image, index) in batch.images.chunks(6).zip(indices) {
                assert!(
                    image
                        .iter()
                        .all(|value| (value - index as f32).abs() < 1e-3)
                );
            }
        }
    }
}

#[test]
fn workers_and_ranks_change_nothing() {
    within(30, || {
        let digits = Arc::new(Digits::new(Split::Train, 200, 1));
        let loader = |workers| {
            let loader = Loader::new(digits.clone()).unwrap();
            loader
                .workers(workers)
                .prefetch(3)
                .augment("shift:3".parse().unwrap(), 9)
        };
        let sampler = |rank, size| TrainSampler::new(200, 24, 4, rank, size, 5).unwrap();
        let expected = collect(&loader(0), sampler(0, 1).epoch(2));
        for workers in [1, 2, 5, 100] {
            assert_eq!(collect(&loader(workers), sampler(0, 1).epoch(2)), expected);
        }
        // Two ranks take the first and second half of each step's six micro-batches.
        let ranks = [0, 1].map(|rank| collect(&loader(2), sampler(rank, 2).epoch(2)));
        let joined: Vec<&Batch> = (0..8)
            .flat_map(|step| {
                ranks
                    .iter()
                    .flat_map(move |rank| &rank[3 * step..3 * step + 3])
            })
            .collect();
        assert!(joined.into_iter().eq(&expected));
        // A resumed epoch continues with the same images.
        let resumed = collect(&loader(2), sampler(0, 1).epoch(2).from_step(5));
        assert_eq!(resumed, expected[30..]);
    });
}

#[test]
fn training_is_augmented_anew_in_every_epoch_and_evaluation_never() {
    within(30, || {
        let digits = Arc::new(Digits::new(Split::Train, 50, 1));
        let plain = Loader::new(digits.clone()).unwrap();
        let shifting = Loader::new(digits)
            .unwrap()
            .augment("shift:3".parse().unwrap(), 1);
        let sampler = TrainSampler::new(50, 50, 50, 0, 1, 0).unwrap().sequential();
        let evaluation = EvalSampler::new(50, 50, 0, 1).unwrap();
        assert_eq!(
            collect(&shifting, evaluation.epoch()),
            collect(&plain, evaluation.epoch())
        );
        let images = |loader, epoch| collect(loader, sampler.epoch(epoch))[0].images.clone();
        assert_ne!(images(&shifting, 0), images(&plain, 0));
        assert_ne!(images(&shifting, 0), images(&shifting, 1));
        assert_eq!(images(&plain, 0), images(&plain, 1));
    });
}

/// Returns the number of good batches and the error after them.
fn until_error(numbers: Numbers, workers: usize) -> (usize, DatasetError) {
    within(20, move || {
        let loader = Loader::new(Arc::new(numbers)).unwrap().workers(workers);
        let mut batches = loader.iter(in_order());
        let mut good = 0;
        loop {
            match batches.next().expect("an error") {
                Ok(batch) => assert_eq!(batch.indices[0], 10 * good),
                Err(error) => {
                    assert!(batches.next().is_none(), "it goes on after an error");
                    return (good, error);
                }
            }
            good += 1;
        }
    })
}

#[test]
fn errors_come_at_their_place() {
    for workers in [0, 1, 2, 3, 10] {
        let mut numbers = Numbers::new();
        numbers.fails_at = Some(57);
        let (good, error) = until_error(numbers, workers);
        assert_eq!(good, 5);
        assert!(
            matches!(error, DatasetError::Index { index: 57, .. }),
            "{error}"
        );

        let mut numbers = Numbers::new();
        numbers.panics_at = Some(57);
        let (good, error) = until_error(numbers, workers);
        assert_eq!(good, 5);
        let DatasetError::Panic {
            position: 5,
            message,
        } = error
        else {
            panic!("{error}");
        };
        assert!(message.contains("no image 57"), "{message}");

        for label in [100, u32::MAX] {
            let mut numbers = Numbers::new();
            numbers.label_at = Some((31, label));
            let (good, error) = until_error(numbers, workers);
            assert_eq!(good, 3);
            assert!(
                matches!(error, DatasetError::Label { index: 31, .. }),
                "{error}"
            );
        }
    }
}

#[test]
fn a_sampler_of_another_length_is_noticed() {
    let digits = Arc::new(Digits::new(Split::Test, 10, 1));
    let loader = Loader::new(digits).unwrap();
    let epoch = EvalSampler::new(11, 4, 0, 1).unwrap().epoch();
    let error = loader.iter(epoch).find_map(Result::err).unwrap();
    assert!(matches!(error, DatasetError::Index { index: 10, len: 10 }));
}

#[test]
fn unusable_statistics_are_refused() {
    let mut numbers = Numbers::new();
    numbers.std = Some(0.0);
    assert!(Loader::new(Arc::new(numbers)).is_err());
}

#[test]
fn dropping_the_iterator_stops_the_workers() {
    let numbers = Arc::new(Numbers {
        delay: Duration::from_millis(50),
        ..Numbers::new()
    });
    let shared = Arc::clone(&numbers);
    let waited = within(20, move || {
        let loader = Loader::new(shared).unwrap().workers(4);
        let mut batches = loader.iter(in_order());
        batches.next().unwrap().unwrap();
        let start = Instant::now();
        drop(batches);
        start.elapsed()
    });
    // A batch takes 500 ms, an image 50.
    assert!(waited < Duration::from_millis(400), "{waited:?}");
    let reads = numbers.reads.load(Ordering::SeqCst);
    assert_eq!(Arc::strong_count(&numbers), 1, "a worker is still there");
    thread::sleep(Duration::from_millis(100));
    assert_eq!(numbers.reads.load(Ordering::SeqCst), reads);
}

#[test]
fn workers_run_ahead_no_further_than_told() {
    within(30, || {
        for (workers, prefetch) in [(1, 1), (1, 3), (2, 2)] {
            let numbers = Arc::new(Numbers::new());
            let loader = Loader::new(numbers.clone()).unwrap();
            let batches = loader.workers(workers).prefetch(prefetch).iter(in_order());
            let expected = 10 * workers * prefetch;
            let read = || numbers.reads.load(Ordering::SeqCst);
            let deadline = Instant::now() + Duration::from_secs(10);
            while read() < expected && Instant::now() < deadline {
                thread::sleep(Duration::from_millis(1));
            }
            thread::sleep(Duration::from_millis(50));
            assert_eq!(read(), expected, "{workers} workers, {prefetch} ahead");
            drop(batches);
        }
    });
}

#[test]
fn recycled_memory_is_used_again() {
    let loader = Loader::new(Arc::new(Numbers::new())).unwrap();
    let expected = collect(&loader, in_order());
    let mut batches = loader.iter(in_order());
    let first = batches.next().unwrap().unwrap();
    let memory = first.images.as_ptr();
    batches.recycle(first);
    let second = batches.next().unwrap().unwrap();
    assert_eq!(second.images.as_ptr(), memory);
    assert_eq!(second, expected[1]);
}

#[test]
fn a_rank_without_samples_gets_no_batch() {
    within(30, || {
        let loader = Loader::new(Arc::new(Numbers::new())).unwrap().workers(2);
        let epoch = EvalSampler::new(3, 10, 4, 5).unwrap().epoch();
        assert_eq!(loader.iter(epoch).count(), 0);
    });
}
