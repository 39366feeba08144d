//! Each sample once, resume, errors, workers.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use proptest::prelude::*;

use super::*;
use crate::within::within;
use crate::{LoaderError, SamplerError};

/// Shards of the given sizes; sample `p` of shard `s` is `1000 s + p`. Can be made to fail.
#[derive(Default)]
struct Numbers {
    sizes: Vec<usize>,
    reads: Arc<AtomicUsize>,
    fails_at: Option<usize>,
    panics_at: Option<usize>,
    delay: Duration,
}

struct Reader {
    next: usize,
    end: usize,
    reads: Arc<AtomicUsize>,
    fails_at: Option<usize>,
    panics_at: Option<usize>,
    delay: Duration,
}

impl Shards for Numbers {
    type Item = usize;

    fn shards(&self) -> usize {
        self.sizes.len()
    }

    fn open(&self, shard: usize) -> Result<Box<dyn ShardReader<Item = usize>>, BoxError> {
        Ok(Box::new(Reader {
            next: 1000 * shard,
            end: 1000 * shard + self.sizes[shard],
            reads: Arc::clone(&self.reads),
            fails_at: self.fails_at,
            panics_at: self.panics_at,
            delay: self.delay,
        }))
    }
}

impl ShardReader for Reader {
    type Item = usize;

    fn read(&mut self) -> Option<Result<usize, BoxError>> {
        self.reads.fetch_add(1, Ordering::SeqCst);
        std::thread::sleep(self.delay);
        assert_ne!(self.panics_at, Some(self.next), "no sample {}", self.next);
        if self.fails_at == Some(self.next) {
            return Some(Err("unreadable".into()));
        }
        let number = self.next;
        self.skip().map(|skipped| skipped.map(|()| number))
    }

    fn skip(&mut self) -> Option<Result<(), BoxError>> {
        (self.next < self.end).then(|| {
            self.next += 1;
            Ok(())
        })
    }
}

fn numbers(sizes: &[usize]) -> Numbers {
    Numbers {
        sizes: sizes.to_vec(),
        ..Numbers::default()
    }
}

/// Samples and a random number for each.
type Batch = Vec<(usize, u64)>;

fn loader(shards: Numbers, workers: usize) -> ShardLoader<usize, Batch> {
    let decode =
        |sample, random: &mut crate::random::Stream| Ok::<_, Infallible>((sample, random.bits()));
    ShardLoader::new(shards, decode, Ok::<Batch, Infallible>).workers(workers)
}

fn batches(loader: &ShardLoader<usize, Batch>, epoch: ShardEpoch) -> Vec<Batch> {
    loader.iter(epoch).collect::<Result<_, _>>().unwrap()
}

fn samples(batches: &[Batch]) -> Vec<usize> {
    batches
        .iter()
        .flatten()
        .map(|(sample, _)| *sample)
        .collect()
}

#[derive(Debug, Clone)]
struct Case {
    sizes: Vec<usize>,
    size: usize,
    batch: usize,
    accumulate: usize,
    division: Division,
    shuffle: Option<(usize, u64)>,
    full: bool,
    epoch: usize,
}

impl Case {
    fn any() -> impl Strategy<Value = Case> {
        let sizes = prop::collection::vec(0_usize..20, 1..8);
        let shuffle = prop::option::of((1_usize..30, any::<u64>()));
        let division = prop::bool::ANY.prop_map(|samples| match samples {
            true => Division::Samples,
            false => Division::Shards,
        });
        let numbers = (1_usize..6, 1_usize..6, 1_usize..4);
        (sizes, numbers, division, shuffle, any::<bool>(), 0_usize..9).prop_map(
            |(sizes, (size, batch, accumulate), division, shuffle, full, epoch)| Case {
                sizes,
                size,
                batch,
                accumulate,
                division,
                shuffle,
                full,
                epoch,
            },
        )
    }

    fn sampler(&self, rank: usize) -> ShardSampler {
        let sampler = ShardSampler::new(self.batch, rank, self.size).unwrap();
        let mut sampler = sampler.accumulate(self.accumulate).divide(self.division);
        if let Some((buffer, seed)) = self.shuffle {
            sampler = sampler.shuffle(buffer, seed);
        }
        if self.full {
            sampler.full_batches()
        } else {
            sampler
        }
    }

    fn ranks(&self) -> Vec<Vec<Batch>> {
        let loader = loader(numbers(&self.sizes), 0);
        let of = |rank| batches(&loader, self.sampler(rank).epoch(self.epoch));
        (0..self.size).map(of).collect()
    }

    fn all(&self) -> Vec<usize> {
        let shards = self.sizes.iter().enumerate();
        shards
            .flat_map(|(shard, &len)| (0..len).map(move |place| 1000 * shard + place))
            .collect()
    }
}

proptest! {
    #[test]
    fn every_sample_reaches_one_rank_once(case in Case::any()) {
        let ranks = case.ranks();
        let mut seen: Vec<usize> = ranks.iter().flat_map(|rank| samples(rank)).collect();
        seen.sort_unstable();
        let all = case.all();
        if !case.full {
            prop_assert_eq!(seen, all);
            return Ok(());
        }
        let step = case.batch * case.accumulate;
        for rank in &ranks {
            prop_assert!(rank.iter().all(|batch| batch.len() == case.batch));
            prop_assert_eq!(rank.len() % case.accumulate, 0);
        }
        let used = seen.len();
        seen.dedup();
        prop_assert_eq!(seen.len(), used);
        if case.division == Division::Samples {
            let each = all.len() / case.size / step * case.accumulate;
            prop_assert!(ranks.iter().all(|rank| rank.len() == each));
        } else {
            // Each rank drops less than a step.
            prop_assert!(all.len() - used <= case.size * (step - 1));
        }
    }

    #[test]
    fn resuming_gives_the_rest_of_the_epoch(case in Case::any(), step in 0_usize..20) {
        let loader = loader(numbers(&case.sizes), 0);
        for (rank, whole) in case.ranks().iter().enumerate() {
            let rest = batches(&loader, case.sampler(rank).epoch(case.epoch).from_step(step));
            let start = (step * case.accumulate).min(whole.len());
            prop_assert_eq!(&rest, &whole[start..]);
        }
    }
}

#[test]
fn workers_change_nothing() {
    within(30, || {
        let sizes = [7, 0, 30, 12, 5];
        let sampler = ShardSampler::new(4, 0, 2).unwrap().shuffle(9, 3);
        let expected = batches(&loader(numbers(&sizes), 0), sampler.epoch(1));
        for workers in [1, 2, 3, 20] {
            let loader = loader(numbers(&sizes), workers);
            assert_eq!(batches(&loader, sampler.epoch(1)), expected);
            let rest = batches(&loader, sampler.epoch(1).from_step(2));
            assert_eq!(rest, expected[2..]);
        }
    });
}

#[test]
fn epochs_and_seeds_shuffle_differently() {
    let loader = loader(numbers(&[20, 20, 20]), 0);
    let order = |seed, epoch| {
        let sampler = ShardSampler::new(60, 0, 1).unwrap().shuffle(10, seed);
        samples(&batches(&loader, sampler.epoch(epoch)))
    };
    let plain = ShardSampler::new(60, 0, 1).unwrap().epoch(0);
    let plain = samples(&batches(&loader, plain));
    assert!(plain.is_sorted());
    let orders = [plain, order(1, 0), order(1, 1), order(2, 0)];
    for (place, one) in orders.iter().enumerate() {
        assert!(orders[..place].iter().all(|other| other != one));
    }
    assert_eq!(order(1, 0), orders[1]);
}

#[test]
fn the_order_never_changes() {
    let loader = loader(numbers(&[3, 4, 3]), 0);
    let sampler = ShardSampler::new(10, 0, 1).unwrap().shuffle(4, 42);
    let order = samples(&batches(&loader, sampler.epoch(1)));
    assert_eq!(order, [1000, 0, 1002, 1003, 2000, 2, 1, 1001, 2002, 2001]);
}

#[test]
fn random_numbers_depend_on_the_sample_and_not_on_the_rank() {
    let of = |size, division| {
        let mut seen = BTreeMap::new();
        for rank in 0..size {
            let sampler = ShardSampler::new(4, rank, size).unwrap().divide(division);
            let sampler = sampler.shuffle(5, 42);
            let loader = loader(numbers(&[9, 9, 9]), 0);
            seen.extend(batches(&loader, sampler.epoch(2)).into_iter().flatten());
        }
        seen
    };
    let alone = of(1, Division::Shards);
    assert_eq!(alone.len(), 27);
    assert_eq!(of(2, Division::Shards), alone);
    assert_eq!(of(4, Division::Samples), alone);
    let mut numbers: Vec<u64> = alone.into_values().collect();
    numbers.sort_unstable();
    numbers.dedup();
    assert_eq!(numbers.len(), 27);
}

#[test]
fn a_resume_skips_what_was_seen() {
    let shards = numbers(&[900, 900]);
    let reads = Arc::clone(&shards.reads);
    let sampler = ShardSampler::new(10, 0, 1).unwrap().shuffle(20, 1);
    let loader = loader(shards, 0);
    let mut batches = loader.iter(sampler.epoch(0).from_step(100));
    batches.next().unwrap().unwrap();
    assert!(reads.load(Ordering::SeqCst) <= 30, "{reads:?}");
    within(20, move || {
        for step in [180, 181, usize::MAX] {
            assert_eq!(loader.iter(sampler.epoch(0).from_step(step)).count(), 0);
        }
    });
}

#[test]
fn errors_and_panics_come_at_their_place() {
    for workers in [0, 1, 2, 5] {
        for panics in [false, true] {
            let mut shards = numbers(&[10, 10, 10]);
            let at = Some(1007); // In the fifth batch.
            match panics {
                true => shards.panics_at = at,
                false => shards.fails_at = at,
            }
            let (good, error) = within(20, move || {
                let loader = loader(shards, workers);
                let epoch = ShardSampler::new(4, 0, 1).unwrap().epoch(0);
                let mut batches = loader.iter(epoch);
                let mut good = 0;
                let error = loop {
                    match batches.next().expect("an error") {
                        Ok(_) => good += 1,
                        Err(error) => break error,
                    }
                };
                assert!(batches.next().is_none());
                (good, error)
            });
            assert_eq!(good, 4);
            match error {
                LoaderError::Panic { position: 4, .. } if panics => {}
                LoaderError::Shard { shard: 1, .. } if !panics => {}
                error => panic!("{error}"),
            }
        }
    }
}

#[test]
fn a_sample_that_cannot_be_decoded_is_named() {
    let decode = |sample: usize, _: &mut _| match sample {
        2003 => Err("no number"),
        _ => Ok(sample),
    };
    let loader = ShardLoader::new(numbers(&[5, 5, 5]), decode, Ok::<_, Infallible>).workers(2);
    let epoch = ShardSampler::new(2, 0, 1).unwrap().epoch(0);
    let error = loader.iter(epoch).find_map(Result::err).unwrap();
    let text = "cannot decode sample 3 of shard 2: no number";
    assert_eq!(error.to_string(), text);
}

#[test]
fn dropping_the_iterator_stops_the_workers() {
    let mut shards = numbers(&[1000]);
    shards.delay = Duration::from_millis(5);
    let reads = Arc::clone(&shards.reads);
    within(20, move || {
        let mut batches = loader(shards, 4).iter(ShardSampler::new(4, 0, 1).unwrap().epoch(0));
        batches.next().unwrap().unwrap();
        drop(batches);
    });
    assert_eq!(Arc::strong_count(&reads), 1, "a worker is still there");
    assert!(reads.load(Ordering::SeqCst) < 100);
}

#[test]
fn a_worker_that_waits_for_its_turn_stops_too() {
    within(20, || {
        // Worker 1 has made batch 1, and waits until worker 0 has read batch 2.
        let decode = |sample: usize, _: &mut _| {
            let slow = if sample == 0 { 300 } else { 0 };
            std::thread::sleep(Duration::from_millis(slow));
            Ok::<_, Infallible>(sample)
        };
        let loader = ShardLoader::new(numbers(&[100]), decode, Ok::<_, Infallible>);
        let batches = loader
            .workers(2)
            .iter(ShardSampler::new(2, 0, 1).unwrap().epoch(0));
        std::thread::sleep(Duration::from_millis(100));
        drop(batches);
    });
}

#[test]
fn impossible_divisions_are_refused() {
    let zero = ShardSampler::new(0, 0, 1).unwrap_err();
    assert!(matches!(zero, SamplerError::Zero { .. }));
    assert!(matches!(
        ShardSampler::new(1, 2, 2).unwrap_err(),
        SamplerError::Rank { rank: 2, size: 2 }
    ));
    assert!(ShardSampler::new(1, 0, 0).is_err());
}
