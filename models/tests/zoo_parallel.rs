//! Every model of the zoo on two ranks: the replicas stay bit-identical and learn, and those without
//! batch statistics follow the model in one process.

use std::thread;

use burn::optim::SgdConfig;
use burn::tensor::{Device, Tensor, TensorData};
use burn_dist::parallel::{Checksum, Parallel, Strategy};
use burn_dist::{GroupOptions, ProcessGroup};
use models::{
    CscCnnConfig, ImageClassifier, PlainWideResNetConfig, Pooling, ResNetConfig, Stem, VitConfig,
    WideResNetConfig,
};

const GLOBAL_BATCH: usize = 8;
const SIDE: usize = 16;
const CLASSES: usize = 4;
const STEPS: usize = 6;

/// What training leaves.
struct Trained {
    checksum: Checksum,
    /// The loss of this rank's images before each step.
    losses: Vec<f32>,
    /// Logits of the whole global batch in evaluation, which goes by the running statistics.
    logits: Vec<f32>,
}

fn device() -> Device {
    let device = Device::flex().autodiff();
    device.seed(7);
    device
}

/// Images `rows` of the global batch.
fn images(rows: std::ops::Range<usize>, device: &Device) -> Tensor<4> {
    let values = SIDE * SIDE * 3;
    let pixel = |i: usize| ((i * 37 + i / values * 11) % 23) as f32 / 23.0 - 0.4;
    let images = (rows.start * values..rows.end * values)
        .map(pixel)
        .collect();
    let data = TensorData::new(images, [rows.len(), 3, SIDE, SIDE]);
    Tensor::from_data(data, device)
}

/// The loss of images `rows` of the global batch: the mean square of the logits around 1.
fn loss<M: ImageClassifier>(model: &M, rows: std::ops::Range<usize>) -> Tensor<1> {
    let images = images(rows, &Device::flex().autodiff());
    (model.forward(images) - 1.0).square().mean()
}

fn train<M: ImageClassifier>(start: M, group: &ProcessGroup) -> Trained {
    let mut parallel = Parallel::new(start, SgdConfig::new(), Strategy::Ddp, group).unwrap();
    let share = GLOBAL_BATCH / group.size();
    let rows = group.rank() * share..(group.rank() + 1) * share;
    let mut losses = Vec::new();
    for _ in 0..STEPS {
        let loss = loss(parallel.model(), rows.clone());
        losses.push(loss.clone().into_scalar());
        parallel.backward(loss).unwrap();
        parallel.step(0.02).unwrap();
    }
    parallel.sync_buffers().unwrap();
    let images = images(0..GLOBAL_BATCH, &Device::flex());
    let logits = parallel.valid().unwrap().forward(images).into_data();
    Trained {
        checksum: parallel.verify_replicas().unwrap(),
        losses,
        logits: logits.try_to_vec().unwrap(),
    }
}

/// Trains on one rank and on two; gives the losses of one rank, and the mean losses of two.
///
/// A model with running statistics is built anew for every rank, as in processes of their own:
/// clones would share the statistics.
#[track_caller]
fn train_twice<M: ImageClassifier>(build: impl Fn() -> M + Sync) -> (Vec<f32>, Vec<f32>) {
    let alone = train(build(), &ProcessGroup::single());
    let groups = ProcessGroup::in_process(2, &GroupOptions::default()).unwrap();
    let ranks: Vec<Trained> = thread::scope(|scope| {
        let build = &build;
        let threads: Vec<_> = groups
            .into_iter()
            .map(|group| scope.spawn(move || train(build(), &group)))
            .collect();
        let join = |thread: thread::ScopedJoinHandle<'_, Trained>| thread.join().unwrap();
        threads.into_iter().map(join).collect()
    });
    assert_eq!(ranks[0].checksum, ranks[1].checksum);
    assert_eq!(ranks[0].logits, ranks[1].logits);
    let mean = |(a, b): (&f32, &f32)| (a + b) / 2.0;
    let together: Vec<f32> = ranks[0]
        .losses
        .iter()
        .zip(&ranks[1].losses)
        .map(mean)
        .collect();
    let (first, last) = (together[0], together[STEPS - 1]);
    assert!(last < 0.9 * first, "the loss went from {first} to {last}");
    (alone.losses, together)
}

#[track_caller]
fn assert_same(alone: &[f32], together: &[f32]) {
    for (step, (a, b)) in alone.iter().zip(together).enumerate() {
        assert!((a - b).abs() <= 1e-5 * a.abs(), "step {step}: {a} and {b}");
    }
}

#[test]
fn vision_transformers_follow_one_process() {
    for pooling in [Pooling::ClassToken, Pooling::Mean] {
        let model = VitConfig::new(12, 2, 3, CLASSES)
            .with_height(SIDE)
            .with_width(SIDE)
            .with_pooling(pooling)
            .init(&device())
            .unwrap();
        let (alone, together) = train_twice(|| model.clone());
        assert_same(&alone, &together);
    }
}

// Each rank normalises by the statistics of its own images, so what follows cannot be the same as
// in one process.

#[test]
fn wide_residual_networks_learn() {
    let config = WideResNetConfig::new(10, 1, CLASSES).with_dropout(0.1);
    train_twice(|| config.init(&device()).unwrap());
}

#[test]
fn plain_wide_residual_networks_learn() {
    let config = PlainWideResNetConfig::new(CLASSES).with_widths([3, 4, 5, 6]);
    train_twice(|| config.init(&device()).unwrap());
}

#[test]
fn residual_networks_learn() {
    for (bottleneck, stem) in [(false, Stem::Cifar), (true, Stem::ImageNet)] {
        let config = ResNetConfig::new([1, 1, 1, 1], bottleneck, CLASSES)
            .with_width(4)
            .with_stem(stem);
        train_twice(|| config.init(&device()).unwrap());
    }
}

#[test]
fn the_csc_network_learns() {
    let config = CscCnnConfig::new()
        .with_channels(3)
        .with_height(SIDE)
        .with_width(SIDE)
        .with_classes(CLASSES)
        .with_filters([3, 4]);
    train_twice(|| config.init(&device()).unwrap());
}
