//! Models of the zoo in low precision: normalizations and attention compute in `f32`, and the
//! models follow their own `f32` runs.

use std::sync::{Mutex, PoisonError};

use burn::optim::SgdConfig;
use burn::tensor::{Device, FloatDType, Tensor, TensorData};
use burn_dist::ProcessGroup;
use burn_dist::parallel::{Parallel, ParallelOptions, Precision};
use models::{
    CnnConfig, CscCnnConfig, ImageClassifier, Pooling, ResNetConfig, Stem, VitConfig,
    WideResNetConfig,
};

const SIDE: usize = 16;
const BATCH: usize = 8;
const CLASSES: usize = 4;
const STEPS: usize = 5;
/// Small, because batch normalization over few values amplifies every difference.
const RATE: f64 = 0.003;

/// Burn's generator is shared by the whole process, and parameters are drawn on first use.
static GENERATOR: Mutex<()> = Mutex::new(());

fn device() -> Device {
    let device = Device::flex().autodiff();
    device.seed(7);
    device
}

fn images(device: &Device) -> Tensor<4> {
    let values = SIDE * SIDE * 3;
    let pixel = |i: usize| ((i * 37 + i / values * 11) % 23) as f32 / 23.0 - 0.4;
    let images = (0..BATCH * values).map(pixel).collect();
    Tensor::from_data(TensorData::new(images, [BATCH, 3, SIDE, SIDE]), device)
}

/// Returns the losses before each step.
fn losses<M: ImageClassifier>(model: M, precision: Precision) -> Vec<f32> {
    let options = ParallelOptions {
        precision,
        ..ParallelOptions::default()
    };
    let group = ProcessGroup::single();
    let mut parallel = Parallel::new(model, SgdConfig::new(), options, &group).unwrap();
    let mut losses = Vec::new();
    let loss = |logits: Tensor<2>| (logits.cast(FloatDType::F32) - 1.0).square().mean();
    while losses.len() < STEPS {
        let images = images(&Device::flex().autodiff()).cast(parallel.compute_dtype());
        let logits = parallel.model().forward(images);
        assert_eq!(FloatDType::from(logits.dtype()), parallel.compute_dtype());
        let loss = loss(logits);
        let value = loss.clone().into_scalar::<f32>();
        parallel.backward(loss).unwrap();
        // A step that only lowered the scale is repeated.
        if parallel.step(RATE).unwrap().applied {
            losses.push(value);
        }
    }
    let logits = parallel.valid().unwrap().forward(images(&Device::flex()));
    assert!(loss(logits).into_scalar::<f32>().is_finite());
    losses
}

#[track_caller]
fn assert_follows<M: ImageClassifier>(build: impl Fn() -> M) {
    let expected = losses(build(), Precision::F32);
    for (precision, tolerance) in [(Precision::Bf16, 0.03), (Precision::F16, 0.01)] {
        let found = losses(build(), precision);
        assert_ne!(found, expected);
        for (found, expected) in found.iter().zip(&expected) {
            let difference = (found - expected).abs();
            assert!(
                difference <= tolerance * expected.max(0.1),
                "{precision}: {found} and {expected}"
            );
        }
    }
}

#[test]
fn convolutional_networks_follow() {
    let _alone = GENERATOR.lock().unwrap_or_else(PoisonError::into_inner);
    assert_follows(|| {
        CnnConfig::new()
            .with_channels(3)
            .with_height(SIDE)
            .with_width(SIDE)
            .with_filters([4, 8])
            .with_hidden(16)
            .with_classes(CLASSES)
            .with_dropout_conv(0.0)
            .with_dropout_hidden(0.0)
            .init(&device())
            .unwrap()
    });
    assert_follows(|| {
        CscCnnConfig::new()
            .with_channels(3)
            .with_height(SIDE)
            .with_width(SIDE)
            .with_classes(CLASSES)
            .init(&device())
            .unwrap()
    });
}

#[test]
fn residual_networks_follow() {
    let _alone = GENERATOR.lock().unwrap_or_else(PoisonError::into_inner);
    assert_follows(|| {
        WideResNetConfig::new(10, 1, CLASSES)
            .init(&device())
            .unwrap()
    });
    assert_follows(|| {
        ResNetConfig::resnet18(CLASSES)
            .with_width(4)
            .with_stem(Stem::Cifar)
            .init(&device())
            .unwrap()
    });
}

#[test]
fn vision_transformers_follow() {
    let _alone = GENERATOR.lock().unwrap_or_else(PoisonError::into_inner);
    for pooling in [Pooling::ClassToken, Pooling::Mean] {
        assert_follows(|| {
            VitConfig::new(16, 2, 2, CLASSES)
                .with_height(SIDE)
                .with_width(SIDE)
                .with_pooling(pooling)
                .init(&device())
                .unwrap()
        });
    }
}

#[test]
fn what_is_random_works_in_low_precision() {
    let _alone = GENERATOR.lock().unwrap_or_else(PoisonError::into_inner);
    let device = device();
    let vit = VitConfig::new(16, 2, 2, CLASSES)
        .with_height(SIDE)
        .with_width(SIDE)
        .with_dropout(0.2)
        .with_drop_path(0.2)
        .init(&device)
        .unwrap();
    for precision in [Precision::Bf16, Precision::F16] {
        let losses = losses(vit.clone(), precision);
        assert!(losses.iter().all(|loss| loss.is_finite()), "{losses:?}");
    }
}
