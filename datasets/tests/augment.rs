//! Augmentation through the loader: a sample depends on (seed, epoch, index) alone.

use std::collections::BTreeMap;
use std::sync::Arc;

use datasets::{
    Augment, Batch, Dataset, DatasetError, Epoch, EvalSampler, ImageShape, Loader, Normalization,
    TrainSampler,
};
use proptest::prelude::*;

const IMAGES: usize = 60;
const SHAPE: ImageShape = ImageShape {
    channels: 3,
    height: 12,
    width: 10,
};

/// Images of structured noise; the label of each is its index.
struct Noise {
    classes: Vec<String>,
}

fn noise() -> Arc<Noise> {
    Arc::new(Noise {
        classes: (0..IMAGES).map(|class| class.to_string()).collect(),
    })
}

impl Dataset for Noise {
    fn len(&self) -> usize {
        IMAGES
    }

    fn shape(&self) -> ImageShape {
        SHAPE
    }

    fn class_names(&self) -> &[String] {
        &self.classes
    }

    fn normalization(&self) -> Normalization {
        Normalization {
            mean: vec![0.5, 0.4, 0.3],
            std: vec![0.25, 0.2, 0.3],
        }
    }

    fn read(&self, index: usize, image: &mut [u8]) -> Result<u32, DatasetError> {
        for (at, value) in image.iter_mut().enumerate() {
            *value = (17 * index + at * at / 7 + 3 * at) as u8;
        }
        Ok(index as u32)
    }
}

/// A loader's output for one image of the data set.
#[derive(Debug, Clone, PartialEq)]
struct Sample {
    pixels: Vec<f32>,
    label: i32,
    /// Second label, and weight of the first.
    mixed: Option<(i32, f32)>,
}

fn samples(batches: impl IntoIterator<Item = Batch>) -> BTreeMap<usize, Sample> {
    let mut samples = BTreeMap::new();
    for batch in batches {
        for (at, &index) in batch.indices.iter().enumerate() {
            let sample = Sample {
                pixels: batch.images[at * SHAPE.len()..(at + 1) * SHAPE.len()].to_vec(),
                label: batch.labels[at],
                mixed: batch
                    .mixed
                    .as_ref()
                    .map(|mixed| (mixed.labels[at], mixed.weights[at])),
            };
            samples.insert(index, sample);
        }
    }
    samples
}

fn load(augment: &str, seed: u64, workers: usize, epoch: Epoch) -> BTreeMap<usize, Sample> {
    let augment: Augment = augment.parse().unwrap();
    let loader = Loader::new(noise()).unwrap();
    let batches = loader.workers(workers).augment(augment, seed).iter(epoch);
    samples(batches.map(Result::unwrap))
}

fn epoch(number: usize, micro_batch: usize, rank: usize, size: usize) -> Epoch {
    let sampler = TrainSampler::new(IMAGES, IMAGES, micro_batch, rank, size, 3).unwrap();
    sampler.epoch(number)
}

fn pipeline() -> impl Strategy<Value = &'static str> {
    prop::sample::select(vec![
        "shift:3",
        "crop:3:reflect+flip",
        "resized-crop+flip+cutout:4",
        "crop+flip+rand-augment:2:14+erase:0.5",
        "crop+flip+three-augment+color-jitter:0.3:0.1+erase:0.5",
        "flip+mixup:0.8:0.5+cutmix:1:0.5",
        "crop:4+flip+rand-augment+mixup:0.8:0.4+cutmix:1:0.4+cutout:3+erase",
    ])
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn samples_depend_on_seed_epoch_and_index_alone(augment in pipeline(), seed: u64,
                                                    number in 0usize..1000) {
        let expected = load(augment, seed, 0, epoch(number, IMAGES, 0, 1));
        prop_assert_eq!(expected.len(), IMAGES);
        for (workers, micro_batch) in [(0, 1), (1, 15), (3, 4), (3, 12)] {
            let found = load(augment, seed, workers, epoch(number, micro_batch, 0, 1));
            prop_assert_eq!(&found, &expected);
        }
        let mut ranks = load(augment, seed, 1, epoch(number, 5, 0, 2));
        ranks.extend(load(augment, seed, 0, epoch(number, 10, 1, 2)));
        prop_assert_eq!(&ranks, &expected);

        let other_epoch = load(augment, seed, 0, epoch(number + 1, IMAGES, 0, 1));
        let other_seed = load(augment, seed ^ 1, 0, epoch(number, IMAGES, 0, 1));
        prop_assert_ne!(&other_epoch, &expected);
        prop_assert_ne!(&other_seed, &expected);
    }

    #[test]
    fn an_image_is_mixed_with_what_the_other_one_is_in_this_epoch(seed: u64, number in 0usize..9) {
        let alone = load("crop:2+flip+rand-augment", seed, 0, epoch(number, 6, 0, 1));
        let mixed = load(
            "crop:2+flip+rand-augment+mixup:1:0.5+cutmix:1:0.5",
            seed,
            0,
            epoch(number, 6, 0, 1),
        );
        let mut kinds = [0, 0];
        for (index, sample) in mixed {
            let (other, weight) = sample.mixed.unwrap();
            prop_assert_eq!(sample.label, index as i32);
            prop_assert_ne!(other, sample.label);
            let (own, other) = (&alone[&index].pixels, &alone[&(other as usize)].pixels);
            let pixels = sample.pixels.iter().zip(own.iter().zip(other));
            let is_sum = pixels.clone().all(|(value, (own, other))| {
                (value - (weight * own + (1.0 - weight) * other)).abs() < 1e-4
            });
            let replaced = pixels.clone().filter(|(value, (own, _))| value != own).count();
            let is_patch = pixels.clone().all(|(value, (own, other))| value == own || value == other);
            // If both images have the same value, a replaced pixel looks like a kept one.
            let area = (1.0 - weight) * SHAPE.len() as f32 + 0.5;
            prop_assert!(is_sum || (is_patch && replaced as f32 <= area));
            kinds[usize::from(is_sum)] += 1;
        }
        prop_assert!(kinds.iter().all(|&n| n >= 10), "{:?}", kinds);
    }
}

#[test]
fn a_batch_has_second_labels_only_where_the_pipeline_mixes() {
    for (augment, mixes) in [
        ("none", false),
        ("crop+flip+rand-augment+cutout+erase", false),
        ("mixup", true),
        ("cutmix", true),
    ] {
        let found = load(augment, 1, 0, epoch(0, 6, 0, 1));
        assert!(
            found.values().all(|sample| sample.mixed.is_some() == mixes),
            "{augment}"
        );
    }
}

#[test]
fn an_image_that_is_not_mixed_keeps_its_label() {
    let found = load("mixup:0.8:0.3", 1, 0, epoch(0, 6, 0, 1));
    let plain = load("none", 1, 0, epoch(0, 6, 0, 1));
    let (kept, mixed): (Vec<_>, Vec<_>) = found
        .into_iter()
        .partition(|(_, sample)| sample.mixed == Some((sample.label, 1.0)));
    assert!((8..30).contains(&mixed.len()), "{}", mixed.len());
    for (index, sample) in kept {
        assert_eq!(sample.pixels, plain[&index].pixels);
    }
}

#[test]
fn evaluation_is_neither_augmented_nor_mixed() {
    let evaluation = || EvalSampler::new(IMAGES, 7, 0, 1).unwrap().epoch();
    let plain = load("none", 1, 0, evaluation());
    for augment in [
        "crop+flip+rand-augment+mixup:1:1+cutout+erase:1",
        "cutmix:1:1",
    ] {
        assert_eq!(load(augment, 1, 2, evaluation()), plain);
    }
}

#[test]
fn memory_of_mixed_batches_serves_batches_of_any_kind() {
    let mixing = Loader::new(noise()).unwrap();
    let mixing = mixing.augment("mixup:1:1".parse().unwrap(), 1);
    let expected = load("mixup:1:1", 1, 0, epoch(0, 6, 0, 1));
    let mut batches = mixing.iter(epoch(0, 6, 0, 1));
    let mut found = BTreeMap::new();
    while let Some(batch) = batches.next().transpose().unwrap() {
        found.extend(samples([batch.clone()]));
        batches.recycle(batch);
    }
    assert_eq!(found, expected);
    // The recycled batch was mixed; an evaluation's is not.
    let evaluation = EvalSampler::new(IMAGES, 6, 0, 1).unwrap().epoch();
    let first = mixing.iter(evaluation).next().unwrap().unwrap();
    assert_eq!(first.mixed, None);
}
