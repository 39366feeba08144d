//! Sections and keys beside `[model]`, `[data]`, `[optimizer]` and `[schedule]`.
//!
//! The doc comment of every key states its meaning, unit and default: docs/config.md is made of
//! them.

use burn_dist::device::DeviceChoice;
use burn_dist::parallel::{Precision, ShardWithin, Strategy};
use burn_dist::{Algorithm, Compression, TransportKind};
use kernels::policy::Choice;

use super::by_name;
use super::class_weights::{self, ClassWeights};
use super::error::Fault;
use super::section::{keys, names};

keys! {
    /// `[weights]`: how a weights file is loaded, by `model.weights` or by a command.
    WeightsConfig {
        /// Whether the file of `model.weights` must contain exactly the tensors of the model, with
        /// their shapes. `false` loads the tensors that fit and lists the others. Default true.
        strict: bool = true,
        /// Dictionary in the file that contains the weights, such as `model_ema`. Nested names are
        /// joined by dots. Default: the one with the most matching names and shapes.
        part: Option<String> = None,
    }
}

names! {
    /// `[train] loss` of the task `classification`.
    LossName {
        /// Cross-entropy of softmax.
        #[default]
        CrossEntropy = "cross-entropy",
        /// Binary cross-entropy of each class.
        Bce = "bce",
    }
}

keys! {
    /// `[train]`: length, batch sizes and device of the training.
    TrainConfig {
        /// Passes over the training data. Default 1.
        #[schemars(extend("unit" = "epochs"))]
        epochs: u64 = 1,
        /// Optimizer steps after which the run ends, even within an epoch. Default: no limit.
        #[schemars(extend("unit" = "steps"))]
        max_steps: Option<u64> = None,
        /// Optimizer steps between two evaluations within an epoch. Early stopping, the best
        /// checkpoint and the schedule `plateau` see each. Default: only at the end of an epoch.
        #[schemars(extend("unit" = "steps"))]
        evaluate_every_steps: Option<u64> = None,
        /// Images per optimizer step over all ranks (the global batch): `micro_batch_size` ×
        /// `accumulate` × world size. Derived if omitted; 64 if `micro_batch_size` is omitted too.
        /// Each epoch drops the few images that do not fill a batch, different ones each time.
        #[schemars(extend("unit" = "images"))]
        batch_size: Option<usize> = None,
        /// Images that one rank computes at a time. Derived if omitted.
        #[schemars(extend("unit" = "images"))]
        micro_batch_size: Option<usize> = None,
        /// Micro-batches per optimizer step on each rank (gradient accumulation). Derived if
        /// omitted and the other two are given, else 1.
        accumulate: Option<usize> = None,
        /// Precision of forward and backward: `f32`, `bf16` or `f16`. Parameters, updates,
        /// normalizations and the loss are always `f32`. Default `f32`.
        #[serde(with = "by_name")]
        #[schemars(schema_with = "by_name::schema::<Precision>")]
        precision: Precision = Precision::F32,
        /// Precision of evaluations: `f32` or that of `precision`, the default. If the loss
        /// overflows in `f16`, the evaluation is repeated in `f32`. `trainer eval` uses `f32` on
        /// devices that lack the other.
        #[serde(with = "by_name::option")]
        #[schemars(schema_with = "by_name::schema::<Precision>")]
        eval_precision: Option<Precision> = None,
        /// Maximum global norm of the gradient; larger gradients are scaled down. Default: off.
        clip_norm: Option<f64> = None,
        /// Share of each label that is spread evenly over all classes, in [0, 1). Default 0.
        label_smoothing: f64 = 0.0,
        /// Training loss of the task `classification`: `cross-entropy` or `bce` (binary
        /// cross-entropy of each class, as in "ResNet strikes back"; the mean over samples and
        /// classes). Evaluations always report the cross-entropy. Default `cross-entropy`.
        loss: LossName = LossName::CrossEntropy,
        /// With `loss = "bce"`: labels above this value become 1, others 0, after mixing and
        /// smoothing, in [0, 1). Default: labels stay as mixed.
        #[serde(skip_serializing_if = "Option::is_none")]
        bce_threshold: Option<f64> = None,
        /// Weights of the classes in the loss: `none`, `balanced` (inverse to the number of
        /// training images, 1 on average), or a number for each class. The loss is the weighted
        /// mean over the global batch, as PyTorch's `weight`. Default `none`.
        #[serde(with = "class_weights")]
        #[schemars(with = "String", extend("type" = "a string or numbers"))]
        class_weights: ClassWeights = ClassWeights::None,
        /// Seed of the initial parameters, the order of the samples, dropout and generated data.
        /// Default 1.
        seed: u64 = 1,
        /// Device: `auto` (a CUDA device, else a GPU through wgpu, else the CPU), `cpu`, `cuda` or
        /// `wgpu`. The last two need a program built with the feature of that name. The ranks of a
        /// node use its devices in turn. Default `auto`.
        #[serde(with = "by_name")]
        #[schemars(schema_with = "by_name::schema::<DeviceChoice>")]
        device: DeviceChoice = DeviceChoice::Auto,
        /// Kernels: `auto` (this program's: on the CPU all operations, several times faster; on
        /// NVIDIA GPUs also convolutions, linear layers and attention; on every GPU most
        /// element-wise operations and reductions), `burn` (Burn's operations only), or `exact` (as
        /// `auto`, but f32 convolutions are direct: no Winograd on the CPU and no split bf16 on
        /// NVIDIA GPUs, whose rounding errors are up to 1e-5 of the largest value). With `f16`,
        /// Burn's operations compute on the CPU. Default `auto`.
        #[serde(with = "by_name")]
        #[schemars(schema_with = "by_name::schema::<Choice>")]
        kernels: Choice = Choice::Auto,
        /// Whether backward recomputes cheap activations instead of storing them, which saves
        /// memory and takes time. `zero-3` always does. Default false.
        recompute: bool = false,
        /// Minutes after which the run saves a checkpoint and exits with code 75. Restart it with
        /// `--resume auto`. Default: no limit.
        max_minutes: Option<f64> = None,
        /// Maximum number of steps per epoch, and of evaluation batches per rank. Default: no
        /// limit.
        limit_batches: Option<u64> = None,
        /// Trains and evaluates on this many global batches of the training images, without
        /// augmentation. A model that can learn soon memorizes them. Default: off.
        overfit_batches: Option<usize> = None,
        /// Whether the run is only a test: three steps and an evaluation of three batches; nothing
        /// is written. Default false.
        fast_dev_run: bool = false,
    }
}

impl TrainConfig {
    /// Number format of evaluations.
    pub fn eval_precision(&self) -> Precision {
        self.eval_precision.unwrap_or(self.precision)
    }
}

keys! {
    /// `[parallel]`: how the ranks share the work.
    ParallelConfig {
        /// The state that each rank holds: everything (`ddp`), or a shard of the optimizer state
        /// (`zero-1`), also of the gradients (`zero-2`), and also of the parameters (`zero-3`).
        /// Default `ddp`.
        #[serde(with = "by_name")]
        #[schemars(schema_with = "by_name::schema::<Strategy>")]
        strategy: Strategy = Strategy::Ddp,
        /// The ranks that share shards: `all`; those of each `node`, so that parameters are
        /// gathered only within a node; or groups of that many consecutive ranks. Groups hold
        /// replicas of each other. Default `all`.
        #[serde(with = "super::shard_within")]
        #[schemars(with = "String", extend("type" = "a string or an integer"))]
        shard_within: ShardWithin = ShardWithin::All,
        /// Number of virtual ranks: equal shares of every global batch, which the ranks compute one
        /// after the other. Results then have the same bits on any number of ranks up to it, and a
        /// run can go on with another number. Only on CPUs. Default: one share per rank.
        virtual_ranks: Option<usize> = None,
        /// Transport between ranks: `auto` (shared memory within a host; between hosts `mpi` if MPI
        /// started the ranks, else TCP), `shm`, `tcp` or `mpi`. Default `auto`.
        #[serde(with = "by_name")]
        #[schemars(schema_with = "by_name::schema::<TransportKind>")]
        transport: TransportKind = TransportKind::Auto,
        /// All-reduce algorithm: `auto` (this program's), `node-first` (this program's, within each
        /// host first) or `mpi` (MPI's own collectives, if MPI started the ranks). Default `auto`.
        #[serde(with = "by_name")]
        #[schemars(schema_with = "by_name::schema::<Algorithm>")]
        algorithm: Algorithm = Algorithm::Auto,
        /// Bucket size for gradients and sharded parameters, in MiB. The first bucket has at most 1
        /// MiB, so that communication starts early. Default 8.
        #[schemars(extend("unit" = "MiB"))]
        bucket_mib: usize = 8,
        /// Buckets of parameters that `zero-3` gathers in advance. Default 1.
        #[schemars(extend("unit" = "buckets"))]
        prefetch: usize = 1,
        /// Compression of `f32` gradients between ranks that share no memory: `none`, `bf16` (half
        /// the bytes, 8-bit mantissa) or `f16` (half the bytes, 11-bit mantissa, small range). Sums
        /// are computed in `f32` and rounded when sent. Default `none`.
        #[serde(with = "by_name")]
        #[schemars(schema_with = "by_name::schema::<Compression>")]
        compression: Compression = Compression::None,
        /// Whether the optimizer state of a GPU model stays in host memory and the CPU computes the
        /// updates: less GPU memory, slower steps. Default false.
        offload_optimizer: bool = false,
        /// Whether batch normalizations use the statistics of the global batch instead of each
        /// rank's micro-batch. Useful for small micro-batches. Default false.
        sync_batch_norm: bool = false,
        /// Seconds that a rank waits for the others in a collective before the run fails. The first
        /// collectives may take longer, and so may ranks that a slow disk delays. Dead ranks are
        /// noticed at once. Default 300.
        #[schemars(extend("unit" = "seconds"))]
        timeout_seconds: u64 = 300,
        /// Seconds from the failure of any rank until this process ends, even if it is busy with
        /// data, a kernel or a hanging file system. Ranks that wait for others end at once. Default
        /// 30.
        #[schemars(extend("unit" = "seconds"))]
        abort_seconds: u64 = 30,
    }
}

keys! {
    /// `[log]`: what a run writes while training.
    LogConfig {
        /// Steps between two lines of `metrics.jsonl`. Default 1.
        #[schemars(extend("unit" = "steps"))]
        every_steps: u64 = 1,
        /// Whether these lines contain the gradient norm of each parameter, over all ranks and
        /// before clipping, as the TensorBoard files do. Default false.
        gradient_norms: bool = false,
        /// Whether to write TensorBoard event files into the run folder. Default true.
        tensorboard: bool = true,
        /// Whether to write the tables `csv/train.csv` and `csv/eval.csv` into the run folder.
        /// Default false.
        csv: bool = false,
        /// Address of an MLflow tracking server, such as `http://127.0.0.1:5000`. Name and password
        /// or token are in the variables of MLflow's own client (`MLFLOW_TRACKING_USERNAME`,
        /// `MLFLOW_TRACKING_PASSWORD`, `MLFLOW_TRACKING_TOKEN`). Default: no MLflow.
        mlflow: Option<String> = None,
        /// Experiment on that server, which is created if necessary. Default: the file name of the
        /// configuration.
        mlflow_experiment: Option<String> = None,
        /// Whether to write `report.html` into the run folder at the end. Default true.
        report: bool = true,
        /// Peak of one device (a GPU, or all CPUs of a node) in TFLOP/s, to report the utilization.
        /// Default: that of well-known GPUs, else unknown.
        peak_tflops: Option<f64> = None,
    }
}

impl LogConfig {
    /// Checks the address of the MLflow server. The configuration is written into the run folder
    /// and to the server, so it must hold no password.
    pub(super) fn check(&self) -> Result<(), Fault> {
        let key = "log.mlflow";
        let Some(url) = &self.mlflow else {
            return match &self.mlflow_experiment {
                None => Ok(()),
                Some(_) => {
                    let key = "log.mlflow_experiment";
                    let message = format!("`{key}` has no effect without `log.mlflow`");
                    let help = "set log.mlflow to the address of a server, or remove it";
                    Err(Fault::in_key(key, message).help(help))
                }
            };
        };
        let rest = ["http://", "https://"]
            .iter()
            .find_map(|scheme| url.strip_prefix(scheme));
        let Some(rest) =
            rest.filter(|rest| !rest.is_empty() && !rest.contains(char::is_whitespace))
        else {
            let message = format!("`{key}` = \"{url}\" is not the address of a server");
            let help = "write http:// or https://, the host and the port";
            return Err(Fault::in_key(key, message).help(help));
        };
        let host = rest.split('/').next().unwrap_or_default();
        if host.contains('@') {
            let help = "set MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD instead";
            let message = format!("`{key}` must not contain a name or password");
            return Err(Fault::in_key(key, message).help(help));
        }
        Ok(())
    }
}

keys! {
    /// `[checkpoint]`: when the run saves its state.
    CheckpointConfig {
        /// Steps between checkpoints. Default 0: none.
        #[schemars(extend("unit" = "steps"))]
        every_steps: u64 = 0,
        /// Epochs between checkpoints; 0 writes none after epochs. Default 1.
        #[schemars(extend("unit" = "epochs"))]
        every_epochs: u64 = 1,
        /// Minutes between checkpoints. Default 0: none.
        #[schemars(extend("unit" = "minutes"))]
        every_minutes: f64 = 0.0,
        /// Number of newest checkpoints to keep. Default 3.
        #[schemars(extend("unit" = "checkpoints"))]
        keep: u64 = 3,
        /// Whether to also write and keep a checkpoint after the best evaluation so far. Default
        /// true, if checkpoints are written at all (one of the three keys above is not 0).
        best: bool = true,
        /// Whether to keep the state in the memory of the nodes too, each shard on two nodes. After
        /// the loss of a rank or a node, training goes on from there. Needs `trainer launch`.
        /// Default false.
        in_memory: bool = false,
        /// Steps between the states that `checkpoint.in_memory` keeps. Default 1: after every step.
        #[schemars(extend("unit" = "steps"))]
        in_memory_every_steps: u64 = 1,
        /// The metric that decides which evaluation is best: `loss` or one of the task's. Default:
        /// `accuracy` (`classification`), `loss` (`language`), `mean_iou` (`segmentation`).
        #[serde(skip_serializing_if = "Option::is_none")]
        monitor: Option<String> = None,
    }
}

impl CheckpointConfig {
    /// Whether checkpoints are enabled.
    pub fn wanted(&self) -> bool {
        self.every_steps > 0 || self.every_epochs > 0 || self.every_minutes > 0.0
    }
}

keys! {
    /// `[early_stopping]`: when the run ends before its last epoch.
    EarlyStoppingConfig {
        /// Validation accuracy, from 0 to 1, at which the run ends. Default: off.
        target_accuracy: Option<f64> = None,
        /// Evaluations in a row. With a target: that must reach it, default 1. Without: without
        /// improvement, after which the run ends, default off.
        #[schemars(extend("unit" = "evaluations"))]
        patience: Option<u64> = None,
        /// The metric that must improve, without a target: `loss` or one of the task's. Default:
        /// that of `checkpoint.monitor` for the task.
        #[serde(skip_serializing_if = "Option::is_none")]
        monitor: Option<String> = None,
        /// Minimum improvement. Default 0.
        min_delta: f64 = 0.0,
    }
}

impl EarlyStoppingConfig {
    /// Drops values that a target ignores and overrides, as from the command line.
    pub(super) fn forget_unused(&mut self, overridden: impl Fn(&str, &str) -> bool) {
        let by = "early_stopping.target_accuracy";
        if self.target_accuracy.is_some() && overridden(by, "early_stopping.monitor") {
            self.monitor = None;
        }
        if self.target_accuracy.is_some() && overridden(by, "early_stopping.min_delta") {
            self.min_delta = Self::default().min_delta;
        }
    }
}
