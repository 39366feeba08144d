//! Models on the operations of `kernels` and on Burn's: losses and gradients are equal, for any
//! number of threads, with and without recomputation, and for any owner of the parameters.

use std::sync::{Mutex, PoisonError};
use std::thread;

use burn::module::{ModuleVisitor, Param};
use burn::optim::AdamWConfig;
use burn::tensor::{Device, Gradients, Tensor, TensorData};
use burn_dist::parallel::{Checksum, Parallel, ParallelOptions, Precision, Strategy};
use burn_dist::{GroupOptions, ProcessGroup};
use kernels::policy::{Choice, scoped};
use models::{
    Cnn, CnnConfig, ImageClassifier, ResNet, ResNetConfig, Stem, Vit, VitConfig, WideResNet,
    WideResNetConfig,
};

const SIDE: usize = 16;
const BATCH: usize = 8;
const CLASSES: usize = 4;

/// Burn's generator is shared by the whole process, and parameters are drawn on first use.
static GENERATOR: Mutex<()> = Mutex::new(());

fn device() -> Device {
    let device = Device::flex().autodiff();
    device.seed(7);
    device
}

/// Wide enough for Winograd's convolution.
fn wide(device: &Device) -> WideResNet {
    WideResNetConfig::new(10, 1, CLASSES).init(device).unwrap()
}

fn vit(device: &Device) -> Vit {
    VitConfig::new(48, 2, 3, CLASSES)
        .with_height(SIDE)
        .with_width(SIDE)
        .init(device)
        .unwrap()
}

fn cnn(device: &Device) -> Cnn {
    CnnConfig::new()
        .with_channels(3)
        .with_height(SIDE)
        .with_width(SIDE)
        .with_filters([16, 32])
        .with_classes(CLASSES)
        .with_dropout_conv(0.0)
        .with_dropout_hidden(0.0)
        .init(device)
        .unwrap()
}

fn resnet(device: &Device) -> ResNet {
    ResNetConfig::resnet18(CLASSES)
        .with_width(16)
        .with_stem(Stem::Cifar)
        .init(device)
        .unwrap()
}

fn images(rows: std::ops::Range<usize>, device: &Device) -> Tensor<4> {
    let values = SIDE * SIDE * 3;
    let pixel = |i: usize| ((i * 37 + i / values * 11) % 23) as f32 / 23.0 - 0.4;
    let images = (rows.start * values..rows.end * values)
        .map(pixel)
        .collect();
    let data = TensorData::new(images, [rows.len(), 3, SIDE, SIDE]);
    Tensor::from_data(data, device)
}

/// Returns logits, then the gradient of every parameter.
fn computed<M: ImageClassifier>(model: &M, device: &Device) -> Vec<Vec<f32>> {
    struct Collect<'a>(&'a Gradients, Vec<Vec<f32>>);

    impl ModuleVisitor for Collect<'_> {
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            if param.is_require_grad() {
                let gradient = param.val().grad(self.0).expect("a gradient");
                self.1.push(gradient.into_data().try_to_vec().unwrap());
            }
        }
    }

    let logits = model.forward(images(0..BATCH, device));
    let gradients = (logits.clone() - 1.0).square().mean().backward();
    let mut collect = Collect(&gradients, vec![logits.into_data().try_to_vec().unwrap()]);
    model.visit(&mut collect);
    collect.1
}

/// Returns the largest difference of two results, relative to the largest value of its tensor.
fn difference(found: &[Vec<f32>], expected: &[Vec<f32>]) -> f32 {
    assert_eq!(found.len(), expected.len());
    // Values that are zero except for rounding errors, such as the gradient of a bias before a
    // normalization, are compared relative to the largest gradient of all.
    let largest = |values: &[f32]| {
        values
            .iter()
            .fold(0f32, |most, value| most.max(value.abs()))
    };
    let floor = 1e-2
        * expected[1..]
            .iter()
            .map(|values| largest(values))
            .fold(0.0, f32::max);
    let pairs = found.iter().zip(expected);
    pairs.fold(0.0, |most, (found, expected)| {
        let scale = largest(expected).max(floor);
        let differences = found
            .iter()
            .zip(expected)
            .map(|(a, b)| (a - b).abs() / scale);
        differences.fold(most, f32::max)
    })
}

#[track_caller]
fn assert_alike<M: ImageClassifier>(build: impl Fn(&Device) -> M + Sync, convolves: bool) {
    let _alone = GENERATOR.lock().unwrap_or_else(PoisonError::into_inner);
    let of = |choice, device: &Device| {
        scoped(choice, || {
            device.seed(7);
            computed(&build(device), device)
        })
    };
    let device = device();
    let burn = of(Choice::Burn, &device);
    let auto = of(Choice::Auto, &device);
    let exact = of(Choice::Exact, &device);
    let (auto_off, exact_off) = (difference(&auto, &burn), difference(&exact, &burn));
    assert!(auto_off > 0.0, "the same operations were used");
    assert!(
        auto_off < 5e-4 && exact_off < 1e-4,
        "{auto_off} {exact_off}"
    );
    assert_eq!(auto != exact, convolves);
    // The same with recomputed activations, and with other numbers of threads.
    assert_eq!(
        of(Choice::Auto, &device.clone().gradient_checkpointing()),
        auto
    );
    for threads in [1, 2, 3] {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads);
        let again = pool.build().unwrap().install(|| of(Choice::Auto, &device));
        assert_eq!(again, auto, "{threads} threads");
    }
}

#[test]
fn wide_residual_networks_are_alike() {
    assert_alike(wide, true);
}

#[test]
fn residual_networks_are_alike() {
    assert_alike(resnet, true);
}

#[test]
fn small_convolutional_networks_are_alike() {
    assert_alike(cnn, true);
}

#[test]
fn vision_transformers_are_alike() {
    assert_alike(vit, false);
}

/// Returns the checksum of the parameters and the losses after three steps on every rank.
fn train<M: ImageClassifier>(
    model: M,
    options: ParallelOptions,
    group: &ProcessGroup,
) -> (Checksum, Vec<f32>) {
    let mut device = Device::flex().autodiff();
    if options.strategy == Strategy::Zero3 {
        device = device.gradient_checkpointing();
    }
    let optimizer = AdamWConfig::new().with_epsilon(1e-8);
    let mut parallel = Parallel::new(model, optimizer, options, group).unwrap();
    let share = BATCH / group.size();
    let rows = group.rank() * share..(group.rank() + 1) * share;
    let mut losses = Vec::new();
    for _ in 0..3 {
        let images = images(rows.clone(), &device).cast(parallel.compute_dtype());
        let logits = parallel.model().forward(images);
        let loss = (logits.cast(burn::tensor::FloatDType::F32) - 1.0)
            .square()
            .mean();
        losses.push(loss.clone().into_scalar());
        parallel.backward(loss).unwrap();
        parallel.step(1e-3).unwrap();
    }
    (parallel.verify_replicas().unwrap(), losses)
}

/// Trains on two ranks, each with its own model; returns the checksum and the mean losses.
fn train_two<M: ImageClassifier>(
    build: &(impl Fn(&Device) -> M + Sync),
    choice: Choice,
    options: &ParallelOptions,
) -> (Checksum, Vec<f32>) {
    let groups = ProcessGroup::in_process(2, &GroupOptions::default()).unwrap();
    let one_after_another = Mutex::new(());
    let ranks: Vec<_> = thread::scope(|scope| {
        let ranks = groups.into_iter().map(|group| {
            let turn = &one_after_another;
            scope.spawn(move || {
                let start = {
                    let _turn = turn.lock().unwrap();
                    let mut device = device();
                    if options.strategy == Strategy::Zero3 {
                        device = device.gradient_checkpointing();
                    }
                    let model = build(&device);
                    // Draws the parameters.
                    model.visit(&mut Draw);
                    model
                };
                scoped(choice, || train(start, options.clone(), &group))
            })
        });
        let ranks: Vec<_> = ranks.collect();
        ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
    });
    assert_eq!(ranks[0].0, ranks[1].0);
    let losses = ranks[0].1.iter().zip(&ranks[1].1);
    (ranks[0].0, losses.map(|(a, b)| (a + b) / 2.0).collect())
}

struct Draw;

impl ModuleVisitor for Draw {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        let _ = param.val();
    }
}

fn options(strategy: Strategy, precision: Precision) -> ParallelOptions {
    ParallelOptions {
        strategy,
        precision,
        // Otherwise the batch normalizations follow only one rank.
        sync_batch_norm: true,
        ..ParallelOptions::default()
    }
}

/// Checks that on two ranks all strategies give the same bits, and the losses of one rank, the
/// first `compared` of them.
#[track_caller]
fn assert_strategies_agree<M: ImageClassifier>(
    build: impl Fn(&Device) -> M + Sync,
    compared: usize,
) {
    let _alone = GENERATOR.lock().unwrap_or_else(PoisonError::into_inner);
    for precision in [Precision::F32, Precision::Bf16] {
        let two = |strategy| train_two(&build, Choice::Auto, &options(strategy, precision));
        let ddp = two(Strategy::Ddp);
        for strategy in [Strategy::Zero1, Strategy::Zero2, Strategy::Zero3] {
            assert_eq!(two(strategy), ddp, "{strategy:?}, {precision}");
        }
        let alone = scoped(Choice::Auto, || {
            let options = options(Strategy::Ddp, precision);
            train(build(&device()), options, &ProcessGroup::single())
        });
        if precision == Precision::F32 {
            for (alone, two) in alone.1.iter().zip(&ddp.1).take(compared) {
                assert!((alone - two).abs() <= 1e-5 * alone.abs(), "{alone} {two}");
            }
        }
    }
}

#[test]
fn transformers_train_alike_under_every_strategy() {
    assert_strategies_agree(vit, 3);
}

#[test]
fn residual_networks_train_alike_under_every_strategy() {
    // AdamW turns gradients that are pure rounding errors, of which normalizations cause many, into
    // steps; for SGD see `zoo_parallel`.
    assert_strategies_agree(wide, 1);
    assert_strategies_agree(resnet, 1);
}

#[test]
fn convolutional_networks_train_alike_under_every_strategy() {
    assert_strategies_agree(cnn, 3);
}
