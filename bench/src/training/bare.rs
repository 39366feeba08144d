//! A plain Burn loop: forward, loss, backward, optimizer step.
//!
//! It runs in a separate process, because the number of compute threads is fixed when a process
//! first computes.

use std::path::PathBuf;
use std::time::Instant;

use burn::nn::loss::CrossEntropyLossConfig;
use burn::optim::momentum::MomentumConfig;
use burn::optim::{GradientsParams, SgdConfig};
use burn::tensor::{Device, FloatDType, Int, Tensor, TensorData};
use burn_dist::parallel::Precision;
use models::ImageClassifier;
use trainer::config::WithModel;

use super::workload::{Optimizer, Sizes, Workload};
use super::{LEARNING_RATE, MOMENTUM, SEED};
use crate::error::BenchError;
use crate::report;

/// Number of batches in rotation, so that no step finds its images in the cache.
const BATCHES: usize = 16;

/// Name of the hidden subcommand.
pub const COMMAND: &str = "training-bare";

/// Arguments of the hidden sub-command.
#[derive(Clone, Debug, clap::Args)]
pub struct BareArgs {
    /// The model to train.
    #[arg(long)]
    model: Workload,
    /// Images per step.
    #[arg(long)]
    batch: usize,
    /// Steps to take.
    #[arg(long)]
    steps: usize,
    /// Further settings of the configuration.
    #[arg(long)]
    set: Vec<String>,
    /// File for the seconds of each step: a JSON list with the list of this one rank.
    #[arg(long)]
    out: PathBuf,
}

/// Trains and writes the seconds of each step.
///
/// # Errors
/// Fails if the model cannot be built or the file cannot be written.
pub fn run(args: &BareArgs) -> Result<(), BenchError> {
    let device = Device::flex().autodiff();
    device.seed(SEED);
    let loaded = args
        .model
        .config_with(Sizes::one_batch(), Optimizer::Sgd, &args.set)?;
    let config = loaded.config;
    trainer::system::compute::choose_kernels(&config, &device)
        .map_err(trainer::TrainError::from)?;
    let data = trainer::data::open(&config.data, SEED)
        .map_err(trainer::TrainError::from)?
        .train;
    let shape = data.shape();
    let batches = (0..BATCHES)
        .map(|number| {
            let images = [args.batch, shape.channels, shape.height, shape.width];
            batch(images, data.class_names().len(), number)
        })
        .collect();
    let bare = Bare {
        batches,
        steps: args.steps,
        device: device.clone(),
        // Burn's own operations would need parameters in bf16, too.
        half: config.train.precision == Precision::Bf16 && config.train.kernels.name() != "burn",
    };
    let seconds = config.model.build(data.as_ref(), &device, bare)?;
    report::write(&args.out, &[seconds])
}

/// The loop for a model of any type.
struct Bare {
    batches: Vec<(TensorData, TensorData)>,
    steps: usize,
    device: Device,
    /// Whether images are bf16.
    half: bool,
}

impl WithModel for Bare {
    type Output = Vec<f64>;

    fn call<M: ImageClassifier>(self, mut model: M) -> Vec<f64> {
        let mut optimizer = SgdConfig::new()
            .with_momentum(Some(MomentumConfig::new().with_momentum(MOMENTUM)))
            .init();
        let loss = CrossEntropyLossConfig::new().init(&self.device);
        let half = self.half;
        let mut seconds = Vec::new();
        for (images, labels) in self.batches.iter().cycle().take(self.steps) {
            let start = Instant::now();
            let images = Tensor::<4>::from_data(images.clone(), &self.device);
            let labels = Tensor::<1, Int>::from_data(labels.clone(), &self.device);
            // The kernels read f32 parameters, so bf16 needs no other cast.
            let images = if half {
                images.cast(FloatDType::BF16)
            } else {
                images
            };
            let logits = model.forward(images).cast(FloatDType::F32);
            let loss = loss.forward(logits, labels);
            // Reporting the loss waits for the device.
            let _: f32 = loss.clone().into_scalar();
            let gradients = GradientsParams::from_grads(loss.backward(), &model);
            model = optimizer.step(LEARNING_RATE, model, gradients);
            seconds.push(start.elapsed().as_secs_f64());
        }
        seconds
    }
}

/// Images with values in the range of normalized ones, and their labels.
fn batch(shape: [usize; 4], classes: usize, number: usize) -> (TensorData, TensorData) {
    // A Weyl sequence: uniform, cheap and portable.
    let noise =
        |index: usize| (index as f32 * 0.618_034 + number as f32 * 0.414_214).fract() * 2.0 - 1.0;
    let images: Vec<f32> = (0..shape.iter().product()).map(noise).collect();
    let labels: Vec<i32> = (0..shape[0])
        .map(|index| ((index + number) % classes.max(1)) as i32)
        .collect();
    (
        TensorData::new(images, shape),
        TensorData::new(labels, [shape[0]]),
    )
}
