//! The loop that anybody would write with Burn alone: forward, loss, backward, optimizer step.
//!
//! It runs in a process of its own, because the number of compute threads is fixed when a process
//! first computes.

use std::path::PathBuf;
use std::time::Instant;

use burn::nn::loss::CrossEntropyLossConfig;
use burn::optim::momentum::MomentumConfig;
use burn::optim::{GradientsParams, SgdConfig};
use burn::tensor::{Device, Int, Tensor, TensorData};
use models::CnnConfig;

use super::{LEARNING_RATE, MOMENTUM, SEED};
use crate::error::BenchError;
use crate::report;

const SIDE: usize = 28;
const CLASSES: usize = 10;
/// Batches that take turns, so that no step finds its images in the cache.
const BATCHES: usize = 16;

/// Name of the hidden sub-command.
pub const COMMAND: &str = "training-bare";

/// Arguments of the hidden sub-command.
#[derive(Clone, Debug, clap::Args)]
pub struct BareArgs {
    /// Images per step.
    #[arg(long)]
    batch: usize,
    /// Steps to take.
    #[arg(long)]
    steps: usize,
    /// File for the seconds of each step, as a JSON list.
    #[arg(long)]
    out: PathBuf,
}

/// Trains and leaves the seconds of each step.
///
/// # Errors
/// When the model cannot be built or the file not be written.
pub fn run(args: &BareArgs) -> Result<(), BenchError> {
    let device = Device::flex().autodiff();
    device.seed(SEED);
    let mut model = CnnConfig::new().init(&device)?;
    let mut optimizer = SgdConfig::new()
        .with_momentum(Some(MomentumConfig::new().with_momentum(MOMENTUM)))
        .init();
    let loss = CrossEntropyLossConfig::new().init(&device);
    let batches: Vec<_> = (0..BATCHES)
        .map(|number| batch(args.batch, number))
        .collect();

    let mut seconds = Vec::new();
    for (images, labels) in batches.iter().cycle().take(args.steps) {
        let start = Instant::now();
        let images = Tensor::<4>::from_data(images.clone(), &device);
        let labels = Tensor::<1, Int>::from_data(labels.clone(), &device);
        let loss = loss.forward(model.forward(images), labels);
        // A loop that reports its loss waits for it.
        let _: f32 = loss.clone().into_scalar();
        let gradients = GradientsParams::from_grads(loss.backward(), &model);
        model = optimizer.step(LEARNING_RATE, model, gradients);
        seconds.push(start.elapsed().as_secs_f64());
    }
    report::write(&args.out, &seconds)
}

/// Images like normalised MNIST's in shape and range, and their labels.
fn batch(size: usize, number: usize) -> (TensorData, TensorData) {
    let pixels = size * SIDE * SIDE;
    // A Weyl sequence: even, cheap, the same everywhere.
    let noise =
        |index: usize| (index as f32 * 0.618_034 + number as f32 * 0.414_214).fract() * 2.0 - 1.0;
    let images: Vec<f32> = (0..pixels).map(noise).collect();
    let labels: Vec<i32> = (0..size)
        .map(|index| ((index + number) % CLASSES) as i32)
        .collect();
    (
        TensorData::new(images, [size, 1, SIDE, SIDE]),
        TensorData::new(labels, [size]),
    )
}
