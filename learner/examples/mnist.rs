//! Trains a convolutional network on handwritten digits with burn-train's `Learner`, on any number
//! of ranks.
//!
//!   cargo run --release -p burn-dist-learner --example mnist -- --nproc 2
//!
//! MNIST is read from the folder in `--data`. Without it, digits are computed. Further arguments:
//! `--folder` for logs and checkpoints (runs/mnist), `--epochs` (2), `--batch` per rank (32),
//! `--samples` for training (4096).

use std::error::Error;
use std::process::ExitCode;
use std::sync::Arc;

use burn::lr_scheduler::cosine::CosineAnnealingLrSchedulerConfig;
use burn::module::Module;
use burn::nn::conv::{Conv2d, Conv2dConfig};
use burn::nn::loss::CrossEntropyLossConfig;
use burn::nn::pool::{MaxPool2d, MaxPool2dConfig};
use burn::nn::{BatchNorm, BatchNormConfig, Dropout, DropoutConfig, Linear, LinearConfig};
use burn::optim::AdamWConfig;
use burn::tensor::activation::gelu;
use burn::tensor::{Device, Int, Tensor, TensorData};
use burn_core::data::dataloader::DataLoaderBuilder;
use burn_core::data::dataloader::batcher::Batcher;
use burn_core::data::dataset::{Dataset, DatasetError};
use burn_dist::ProcessGroup;
use burn_train::metric::{AccuracyMetric, LearningRateMetric, LossMetric};
use burn_train::{
    ClassificationOutput, InferenceStep, Learner, LearningResult, SupervisedTraining, TrainOutput,
    TrainStep,
};
use datasets::{Digits, Mnist, Split};
use learner::{Distribute, Distributed};

const SIDE: usize = 28;
const CLASSES: usize = 10;

/// Two convolutions and two linear layers.
#[derive(Module, Debug)]
pub struct Network {
    near: Conv2d,
    norm: BatchNorm,
    far: Conv2d,
    pool: MaxPool2d,
    hidden: Linear,
    dropout: Dropout,
    out: Linear,
}

impl Network {
    fn new(device: &Device) -> Self {
        let convolution =
            |inputs, outputs| Conv2dConfig::new([inputs, outputs], [3, 3]).init(device);
        Self {
            near: convolution(1, 8),
            norm: BatchNormConfig::new(8).init(device),
            far: convolution(8, 16),
            pool: MaxPool2dConfig::new([2, 2]).with_strides([2, 2]).init(),
            hidden: LinearConfig::new(16 * 5 * 5, 64).init(device),
            dropout: DropoutConfig::new(0.2).init(),
            out: LinearConfig::new(64, CLASSES).init(device),
        }
    }

    /// Scores of the classes, `[batch, 10]`, for images, `[batch, 28, 28]`.
    fn forward(&self, images: Tensor<3>) -> Tensor<2> {
        let x = images.unsqueeze_dim::<4>(1);
        let x = self
            .pool
            .forward(gelu(self.norm.forward(self.near.forward(x))));
        let x = self.pool.forward(gelu(self.far.forward(x)));
        let x = gelu(self.hidden.forward(x.flatten(1, 3)));
        self.out.forward(self.dropout.forward(x))
    }

    fn classify(&self, batch: Batch) -> ClassificationOutput {
        let scores = self.forward(batch.images);
        let loss = CrossEntropyLossConfig::new()
            .init(&scores.device())
            .forward(scores.clone(), batch.labels.clone());
        ClassificationOutput::new(loss, scores, batch.labels)
    }
}

impl TrainStep for Network {
    type Input = Batch;
    type Output = ClassificationOutput;

    fn step(&self, batch: Batch) -> TrainOutput<ClassificationOutput> {
        let output = self.classify(batch);
        TrainOutput::new(self, output.loss.backward(), output)
    }
}

impl InferenceStep for Network {
    type Input = Batch;
    type Output = ClassificationOutput;

    fn step(&self, batch: Batch) -> ClassificationOutput {
        self.classify(batch)
    }
}

/// Images, `[batch, 28, 28]`, and labels, `[batch]`.
#[derive(Clone, Debug)]
pub struct Batch {
    images: Tensor<3>,
    labels: Tensor<1, Int>,
}

#[derive(Clone, Debug)]
struct Digit {
    pixels: Vec<f32>,
    label: i64,
}

/// A data set of the crate `datasets` as one of Burn's.
struct Images {
    source: Arc<dyn datasets::Dataset>,
    len: usize,
}

impl Dataset<Digit> for Images {
    fn get(&self, index: usize) -> Result<Digit, DatasetError> {
        let mut bytes = [0; SIDE * SIDE];
        let label = self.source.read(index, &mut bytes);
        let label = label.map_err(DatasetError::new)?;
        Ok(Digit {
            pixels: bytes.iter().map(|byte| f32::from(*byte) / 255.0).collect(),
            label: i64::from(label),
        })
    }

    fn len(&self) -> usize {
        self.len
    }
}

struct Stack;

impl Batcher<Digit, Batch> for Stack {
    fn batch(&self, digits: Vec<Digit>, device: &Device) -> Batch {
        let labels: Vec<i64> = digits.iter().map(|digit| digit.label).collect();
        let count = digits.len();
        let pixels: Vec<f32> = digits.into_iter().flat_map(|digit| digit.pixels).collect();
        Batch {
            images: Tensor::from_data(TensorData::new(pixels, [count, SIDE, SIDE]), device),
            labels: Tensor::from_data(TensorData::new(labels, [count]), device),
        }
    }
}

/// The arguments.
pub struct Options {
    /// Folder of MNIST.
    pub data: Option<String>,
    /// Folder for logs and checkpoints.
    pub folder: String,
    /// Passes over the training set.
    pub epochs: usize,
    /// Samples in a batch of a rank.
    pub batch: usize,
    /// Samples for training; a quarter of that number is for validation.
    pub samples: usize,
}

impl Options {
    fn open(&self, split: Split, len: usize) -> Result<Images, datasets::DatasetError> {
        let source: Arc<dyn datasets::Dataset> = match &self.data {
            Some(folder) => Arc::new(Mnist::open(folder, split)?),
            None => Arc::new(Digits::new(split, len, 1)),
        };
        let len = len.min(source.len());
        Ok(Images { source, len })
    }
}

/// Trains on all ranks of `group`.
pub fn train(
    group: &ProcessGroup,
    device: &Device,
    options: &Options,
) -> Result<LearningResult<Network>, Box<dyn Error + Send + Sync>> {
    device.seed(1);
    let train = DataLoaderBuilder::new(Stack)
        .batch_size(options.batch)
        .shuffle(1)
        .build(options.open(Split::Train, options.samples)?);
    let valid = DataLoaderBuilder::new(Stack)
        .batch_size(options.batch)
        .build(options.open(Split::Test, options.samples / 4)?);
    let steps = options.epochs * options.samples.div_ceil(options.batch * group.size());
    let schedule = CosineAnnealingLrSchedulerConfig::new(4e-3, steps).init()?;
    let learner = Learner::new(Network::new(device), AdamWConfig::new().init(), schedule);
    Ok(SupervisedTraining::new(&options.folder, train, valid)
        .metrics((AccuracyMetric::new(), LossMetric::new()))
        .metric_train_numeric(LearningRateMetric::new())
        .with_default_checkpointers()
        .num_epochs(options.epochs)
        .distribute(Distributed::new(group).seed(1))
        .launch(learner))
}

fn main() -> ExitCode {
    burn_dist::run(|world, group| {
        let argument = |name: &str| {
            let mut arguments = std::env::args().skip_while(|argument| argument != name);
            arguments.nth(1)
        };
        let number = |name: &str, default: usize| match argument(name) {
            Some(number) => number.parse(),
            None => Ok(default),
        };
        let options = Options {
            data: argument("--data"),
            folder: argument("--folder").unwrap_or_else(|| "runs/mnist".to_owned()),
            epochs: number("--epochs", 2)?,
            batch: number("--batch", 32)?,
            samples: number("--samples", 4096)?,
        };
        let result = train(group, &world.device()?.autodiff(), &options)?;
        match result.error {
            Some(error) => Err(error.to_string().into()),
            None => Ok(()),
        }
    })
}
