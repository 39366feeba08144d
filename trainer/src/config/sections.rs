//! The sections of a configuration and their keys. Every field says what it is, its unit, and
//! its default; that text is the reference for authors of configuration files.

use std::fmt::Display;
use std::str::FromStr;

use datasets::Augment;
use serde::de::Error;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::section::names;

/// `[model]`: what is trained. The keys depend on `name`.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(tag = "name", rename_all = "kebab-case")]
pub enum ModelConfig {
    /// `cnn`: two 3×3 convolutions, max-pooling and two linear layers.
    Cnn(CnnConfig),
}

/// `[model] name = "cnn"`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct CnnConfig {
    /// Output channels of the two convolutions. Default `[32, 64]`.
    pub filters: [usize; 2],
    /// Width of the hidden linear layer. Default 128.
    pub hidden: usize,
    /// Probability of zeroing a value after the pooling, in [0, 1). Default 0.25.
    pub dropout_conv: f64,
    /// Probability of zeroing a value before the last layer, in [0, 1). Default 0.5.
    pub dropout_hidden: f64,
}

impl Default for CnnConfig {
    fn default() -> Self {
        Self {
            filters: [32, 64],
            hidden: 128,
            dropout_conv: 0.25,
            dropout_hidden: 0.5,
        }
    }
}

names! {
    /// `[data] name`.
    DataName {
        /// 28×28 digits drawn by a generator; needs no files.
        #[default]
        Digits = "digits",
        /// MNIST: 28×28 handwritten digits, 60000 to train and 10000 to test.
        Mnist = "mnist",
    }
}

/// `[data]`: what is learned from.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct DataConfig {
    /// Data set: `digits` or `mnist`. Default `digits`.
    pub name: DataName,
    /// Folder that holds the files, or will after the download. Default `data/<name>`; `digits`
    /// needs none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dir: Option<std::path::PathBuf>,
    /// Whether missing files are downloaded, by the first rank of each node. Default true.
    pub download: bool,
    /// Threads per rank that prepare batches; 0 prepares them in the thread that trains.
    /// Default 1.
    pub workers: usize,
    /// Random changes to training images, joined by `+`: `shift[:PIXELS]`,
    /// `crop[:PADDING[:reflect]]`, `flip[:P]`, `resized-crop[:MIN_SCALE]`,
    /// `rand-augment[:OPS[:MAGNITUDE]]`, `cutout[:SIDE]`, `mixup[:ALPHA[:P]]`,
    /// `cutmix[:ALPHA[:P]]`, `erase[:P]`; for example `crop:4+flip`. Default `none`.
    #[serde(serialize_with = "as_text", deserialize_with = "from_text")]
    pub augment: Augment,
    /// Training images used, the first ones of the data set. Default: all (`digits`: 8192).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub train_samples: Option<usize>,
    /// Test images used, the first ones of the data set. Default: all (`digits`: 2048).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub test_samples: Option<usize>,
}

impl Default for DataConfig {
    fn default() -> Self {
        Self {
            name: DataName::Digits,
            dir: None,
            download: true,
            workers: 1,
            augment: Augment::default(),
            train_samples: None,
            test_samples: None,
        }
    }
}

fn as_text<T: Display, S: Serializer>(value: &T, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(value)
}

fn from_text<'de, T: FromStr<Err: Display>, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<T, D::Error> {
    let text = String::deserialize(deserializer)?;
    text.parse().map_err(D::Error::custom)
}

/// `[optimizer]`: how gradients change parameters. The keys depend on `name`. Formulas and
/// defaults are PyTorch's.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(tag = "name", rename_all = "lowercase")]
pub enum OptimizerConfig {
    /// `sgd`: stochastic gradient descent.
    Sgd(SgdConfig),
    /// `adam`: Adam; weight decay is added to the gradient.
    Adam(AdamConfig),
    /// `adamw`: Adam with decoupled weight decay.
    AdamW(AdamWConfig),
    /// `adadelta`: Adadelta.
    Adadelta(AdadeltaConfig),
}

impl OptimizerConfig {
    /// Learning rate before any schedule.
    pub fn lr(&self) -> f64 {
        match self {
            Self::Sgd(config) => config.lr,
            Self::Adam(config) => config.lr,
            Self::AdamW(config) => config.lr,
            Self::Adadelta(config) => config.lr,
        }
    }
}

/// `[optimizer] name = "sgd"`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct SgdConfig {
    /// Learning rate. Default 0.01.
    pub lr: f64,
    /// Share of the last update that is kept, in [0, 1). Default 0: no momentum.
    pub momentum: f64,
    /// Nesterov's form of momentum. Default false.
    pub nesterov: bool,
    /// Multiple of the parameter that is added to its gradient. Default 0.
    pub weight_decay: f64,
}

impl Default for SgdConfig {
    fn default() -> Self {
        Self {
            lr: 0.01,
            momentum: 0.0,
            nesterov: false,
            weight_decay: 0.0,
        }
    }
}

/// `[optimizer] name = "adam"`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct AdamConfig {
    /// Learning rate. Default 0.001.
    pub lr: f64,
    /// Decay of the averages of the gradient and its square, in [0, 1). Default `[0.9, 0.999]`.
    pub betas: [f64; 2],
    /// Added to the denominator. Default 1e-8.
    pub eps: f64,
    /// Multiple of the parameter that is added to its gradient. Default 0.
    pub weight_decay: f64,
}

impl Default for AdamConfig {
    fn default() -> Self {
        Self {
            lr: 1e-3,
            betas: [0.9, 0.999],
            eps: 1e-8,
            weight_decay: 0.0,
        }
    }
}

/// `[optimizer] name = "adamw"`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct AdamWConfig {
    /// Learning rate. Default 0.001.
    pub lr: f64,
    /// Decay of the averages of the gradient and its square, in [0, 1). Default `[0.9, 0.999]`.
    pub betas: [f64; 2],
    /// Added to the denominator. Default 1e-8.
    pub eps: f64,
    /// Share of each parameter, times `lr`, that a step takes away. Default 0.01.
    pub weight_decay: f64,
}

impl Default for AdamWConfig {
    fn default() -> Self {
        Self {
            lr: 1e-3,
            betas: [0.9, 0.999],
            eps: 1e-8,
            weight_decay: 0.01,
        }
    }
}

/// `[optimizer] name = "adadelta"`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct AdadeltaConfig {
    /// Learning rate. Default 1.
    pub lr: f64,
    /// Decay of the averages of squared gradients and squared updates, in [0, 1). Default 0.9.
    pub rho: f64,
    /// Added under both square roots. Default 1e-6.
    pub eps: f64,
    /// Multiple of the parameter that is added to its gradient. Default 0.
    pub weight_decay: f64,
}

impl Default for AdadeltaConfig {
    fn default() -> Self {
        Self {
            lr: 1.0,
            rho: 0.9,
            eps: 1e-6,
            weight_decay: 0.0,
        }
    }
}

names! {
    /// `[schedule] name`.
    ScheduleName {
        /// The optimizer's `lr` at every step.
        #[default]
        Constant = "constant",
        /// A straight line.
        Linear = "linear",
        /// Half a cosine.
        Cosine = "cosine",
        /// Smaller by a factor at given epochs.
        Step = "step",
        /// Smaller by a factor every epoch.
        Exponential = "exponential",
    }
}

/// `[schedule]`: how the learning rate changes over the run.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ScheduleConfig {
    /// Default `constant`, the only one in this version.
    pub name: ScheduleName,
}

names! {
    /// `[train] precision`: number format of forward and backward.
    Precision {
        /// IEEE single precision.
        #[default]
        F32 = "f32",
        /// bfloat16 with f32 master weights.
        Bf16 = "bf16",
        /// IEEE half precision with f32 master weights and loss scaling.
        F16 = "f16",
    }
}

names! {
    /// `[train] device`: what computes.
    DeviceName {
        /// The best device there is.
        #[default]
        Auto = "auto",
        /// The processor.
        Cpu = "cpu",
        /// An NVIDIA GPU.
        Cuda = "cuda",
        /// A GPU through WebGPU.
        Wgpu = "wgpu",
    }
}

/// `[train]`: how long, in which portions, and on what.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct TrainConfig {
    /// Passes over the training data. Default 1.
    pub epochs: u64,
    /// Optimizer steps after which the run ends even inside an epoch. Default: no limit.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_steps: Option<u64>,
    /// Images per optimizer step over all ranks (the global batch), which is `micro_batch_size` ×
    /// `accumulate` × world size. Derived when left out; 64 when `micro_batch_size` is left out
    /// too.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub batch_size: Option<usize>,
    /// Images that one rank computes at a time. Derived when left out.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub micro_batch_size: Option<usize>,
    /// Micro-batches whose gradients add up to one optimizer step. Derived when left out and the
    /// other two are given, else 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub accumulate: Option<usize>,
    /// Number format of forward and backward: `f32`. Default `f32`.
    pub precision: Precision,
    /// Largest global norm of the gradient; a longer gradient is scaled down to it. Default: off.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub clip_norm: Option<f64>,
    /// Seed of the initial parameters, the order of the samples, dropout and generated data.
    /// Default 1.
    pub seed: u64,
    /// What computes: `auto` or `cpu`. Default `auto`.
    pub device: DeviceName,
}

impl Default for TrainConfig {
    fn default() -> Self {
        Self {
            epochs: 1,
            max_steps: None,
            batch_size: None,
            micro_batch_size: None,
            accumulate: None,
            precision: Precision::F32,
            clip_norm: None,
            seed: 1,
            device: DeviceName::Auto,
        }
    }
}

names! {
    /// `[parallel] strategy`: what each rank holds.
    StrategyName {
        /// Every rank holds the whole model; gradients are averaged.
        #[default]
        Ddp = "ddp",
        /// Optimizer state is sharded.
        Zero1 = "zero-1",
        /// Optimizer state and gradients are sharded.
        Zero2 = "zero-2",
        /// Optimizer state, gradients and parameters are sharded.
        Zero3 = "zero-3",
    }
}

names! {
    /// `[parallel] transport`: how bytes move between ranks.
    TransportName {
        /// Shared memory where all ranks are on one host, else TCP.
        #[default]
        Auto = "auto",
        /// Shared memory; one host only.
        Shm = "shm",
        /// TCP.
        Tcp = "tcp",
    }
}

names! {
    /// `[parallel] compression`: number format in which gradients travel.
    Compression {
        /// As they are.
        #[default]
        None = "none",
        /// bfloat16.
        Bf16 = "bf16",
        /// IEEE half precision.
        F16 = "f16",
    }
}

/// `[parallel]`: how the ranks work together.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ParallelConfig {
    /// What each rank holds: `ddp`. Default `ddp`.
    pub strategy: StrategyName,
    /// How bytes move between ranks: `auto`, `shm`, `tcp`. Default `auto`.
    pub transport: TransportName,
    /// Gradients that travel together, in MiB; the first bucket has at most 1 MiB so that
    /// communication starts early. Default 25.
    pub bucket_mib: usize,
    /// Number format in which gradients travel: `none`. Default `none`.
    pub compression: Compression,
    /// Seconds that one rank waits for the others in a collective before the run fails. The
    /// first collective may take longer, and ranks that die are noticed at once. Default 300.
    pub timeout_seconds: u64,
}

impl Default for ParallelConfig {
    fn default() -> Self {
        Self {
            strategy: StrategyName::Ddp,
            transport: TransportName::Auto,
            bucket_mib: 25,
            compression: Compression::None,
            timeout_seconds: 300,
        }
    }
}

/// `[log]`: what is written while training.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct LogConfig {
    /// Steps from one line of `metrics.jsonl` to the next. Default 1.
    pub every_steps: u64,
}

impl Default for LogConfig {
    fn default() -> Self {
        Self { every_steps: 1 }
    }
}

/// `[checkpoint]`: when the state of the run is saved. Not available in this version.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct CheckpointConfig {
    /// Steps from one checkpoint to the next. Default 0: none.
    pub every_steps: u64,
    /// Epochs from one checkpoint to the next. Default 0: none.
    pub every_epochs: u64,
    /// Checkpoints that are kept. Default 3.
    pub keep: u64,
}

impl Default for CheckpointConfig {
    fn default() -> Self {
        Self {
            every_steps: 0,
            every_epochs: 0,
            keep: 3,
        }
    }
}

/// `[early_stopping]`: when the run ends before its last epoch. Not available in this version.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct EarlyStoppingConfig {
    /// Validation accuracy, from 0 to 1, at which the run ends. Default: off.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub target_accuracy: Option<f64>,
    /// Evaluations in a row that must reach the target, or bring no better one. Default: off.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub patience: Option<u64>,
}
