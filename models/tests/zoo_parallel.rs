//! Every model of the zoo on two ranks: the replicas stay bitwise equal and learn, and models
//! without batch statistics, or with those of all ranks, follow the model in one process.

use std::thread;

use burn::module::{ModuleMapper, Param};
use burn::optim::SgdConfig;
use burn::tensor::{Device, Tensor, TensorData};
use burn_dist::parallel::{Checksum, Parallel, ParallelOptions};
use burn_dist::{GroupOptions, ProcessGroup};
use models::{
    ConvNextConfig, CscCnnConfig, ImageClassifier, PlainWideResNetConfig, Pooling, ResNetConfig,
    Stem, VitConfig, WideResNetConfig,
};

const GLOBAL_BATCH: usize = 8;
const SIDE: usize = 16;
const CLASSES: usize = 4;
const STEPS: usize = 6;

/// Results of a training.
struct Trained {
    checksum: Checksum,
    /// Losses of this rank's images before each step.
    losses: Vec<f32>,
    /// Logits of the whole global batch in evaluation, which uses the running statistics.
    logits: Vec<f32>,
}

fn device() -> Device {
    let device = Device::flex().autodiff();
    device.seed(7);
    device
}

/// Returns images `rows` of the global batch.
fn images(rows: std::ops::Range<usize>, device: &Device) -> Tensor<4> {
    let values = SIDE * SIDE * 3;
    let pixel = |i: usize| ((i * 37 + i / values * 11) % 23) as f32 / 23.0 - 0.4;
    let images = (rows.start * values..rows.end * values)
        .map(pixel)
        .collect();
    let data = TensorData::new(images, [rows.len(), 3, SIDE, SIDE]);
    Tensor::from_data(data, device)
}

/// Returns the loss of images `rows` of the global batch: the mean square of the logits around 1.
fn loss<M: ImageClassifier>(model: &M, rows: std::ops::Range<usize>) -> Tensor<1> {
    let images = images(rows, &Device::flex().autodiff());
    (model.forward(images) - 1.0).square().mean()
}

fn train<M: ImageClassifier>(
    start: M,
    rate: f64,
    options: ParallelOptions,
    group: &ProcessGroup,
) -> Trained {
    let mut parallel = Parallel::new(start, SgdConfig::new(), options, group).unwrap();
    let share = GLOBAL_BATCH / group.size();
    let rows = group.rank() * share..(group.rank() + 1) * share;
    let mut losses = Vec::new();
    for _ in 0..STEPS {
        let loss = loss(parallel.model(), rows.clone());
        losses.push(loss.clone().into_scalar());
        parallel.backward(loss).unwrap();
        parallel.step(rate).unwrap();
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

/// Trains on one rank and on two; returns the losses of one rank, and the mean losses of two.
///
/// Every rank builds its own model with running statistics, as separate processes do, because
/// clones would share the statistics.
#[track_caller]
fn train_twice<M: ImageClassifier>(build: impl Fn() -> M + Sync) -> (Vec<f32>, Vec<f32>) {
    let (alone, ranks) = train_twice_with(build, 0.02, ParallelOptions::default());
    let mean = |(a, b): (&f32, &f32)| (a + b) / 2.0;
    let losses = ranks[0].losses.iter().zip(&ranks[1].losses);
    let together: Vec<f32> = losses.map(mean).collect();
    let (first, last) = (together[0], together[STEPS - 1]);
    assert!(last < 0.9 * first, "the loss went from {first} to {last}");
    (alone.losses, together)
}

/// Does the same with options for two ranks; returns the results of both trainings.
#[track_caller]
fn train_twice_with<M: ImageClassifier>(
    build: impl Fn() -> M + Sync,
    rate: f64,
    options: ParallelOptions,
) -> (Trained, Vec<Trained>) {
    let alone = train(
        build(),
        rate,
        ParallelOptions::default(),
        &ProcessGroup::single(),
    );
    let groups = ProcessGroup::in_process(2, &GroupOptions::default()).unwrap();
    let ranks: Vec<Trained> = thread::scope(|scope| {
        let (build, options) = (&build, &options);
        let threads: Vec<_> = groups
            .into_iter()
            .map(|group| scope.spawn(move || train(build(), rate, options.clone(), &group)))
            .collect();
        let join = |thread: thread::ScopedJoinHandle<'_, Trained>| thread.join().unwrap();
        threads.into_iter().map(join).collect()
    });
    assert_eq!(ranks[0].checksum, ranks[1].checksum);
    assert_eq!(ranks[0].logits, ranks[1].logits);
    (alone, ranks)
}

/// Sets all weights without Burn's generator, which the whole process shares while the ranks here
/// are threads.
struct Fill {
    seed: usize,
}

impl ModuleMapper for Fill {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        param.map(|value| {
            let shape = value.shape();
            let count = shape.num_elements();
            // The inputs are the first dimension of a linear layer. Scales, offsets and biases are
            // around a half.
            let (middle, inputs) = match D {
                1 => (0.5, 100),
                2 => (0.0, shape[0]),
                _ => (0.0, count / shape[0]),
            };
            let width = (12.0 / inputs as f32).sqrt();
            let seed = self.seed;
            self.seed += count;
            let number = |i: usize| ((seed + i) * 2_654_435_761 % 65_521) as f32 / 65_521.0 - 0.5;
            let values = (0..count).map(|i| middle + number(i) * width).collect();
            Tensor::from_data(TensorData::new(values, shape), &value.device()).require_grad()
        })
    }
}

/// Trains with batch normalizations over the statistics of all ranks, and compares with one rank.
#[track_caller]
fn assert_follows_together<M: ImageClassifier>(build: impl Fn() -> M + Sync) {
    let options = ParallelOptions {
        sync_batch_norm: true,
        ..ParallelOptions::default()
    };
    let (alone, ranks) = train_twice_with(|| build().map(&mut Fill { seed: 1 }), 0.002, options);
    let losses = ranks[0].losses.iter().zip(&ranks[1].losses);
    let together: Vec<f32> = losses.map(|(a, b)| (a + b) / 2.0).collect();
    // Later roundings have moved values across a ReLU's zero. With separate statistics the ranks'
    // first loss is off by two thousandths.
    assert_same(&alone.losses[..2], &together[..2]);
    for (a, b) in alone.losses.iter().zip(&together) {
        assert!((a - b).abs() <= 1e-2 * a.abs(), "{a} and {b}");
    }
    // Logits depend on the running statistics.
    for (a, b) in alone.logits.iter().zip(&ranks[0].logits) {
        assert!((a - b).abs() <= 5e-2, "{a} and {b}");
    }
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

#[test]
fn convnexts_follow_one_process() {
    let model = ConvNextConfig::new([1; 4], [4, 4, 6, 8], CLASSES)
        .with_height(SIDE)
        .with_width(SIDE)
        .with_patch(2)
        .with_layer_scale(0.5)
        .init(&device())
        .unwrap();
    let (alone, together) = train_twice(|| model.clone());
    assert_same(&alone, &together);
}

#[test]
fn networks_with_synchronised_statistics_follow_one_process() {
    let config = WideResNetConfig::new(10, 1, CLASSES);
    assert_follows_together(|| config.init(&device()).unwrap());
    let config = PlainWideResNetConfig::new(CLASSES)
        .with_widths([3, 4, 5, 6])
        .with_dropout(0.0);
    assert_follows_together(|| config.init(&device()).unwrap());
    let config = ResNetConfig::new([1, 1, 1, 1], true, CLASSES).with_width(4);
    assert_follows_together(|| config.init(&device()).unwrap());
}

// Each rank normalises by the statistics of its own images, so the results cannot equal those of
// one process.

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
