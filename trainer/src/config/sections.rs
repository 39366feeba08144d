//! The sections of a configuration and their keys, but for `[model]`, `[data]` and `[optimizer]`.
//! Every field says what it is, its unit, and its default; that text is the reference for authors
//! of configuration files.

use burn_dist::device::DeviceChoice;
use burn_dist::parallel::{Precision, ShardWithin, Strategy};
use burn_dist::{Algorithm, Compression, TransportKind};
use kernels::policy::Choice;

use super::by_name;
use super::section::{keys, names};

keys! {
    /// `[weights]`: how a file of weights is taken: that of `model.weights`, or one that a command
    /// is given.
    WeightsConfig {
        /// Whether every tensor of the model has to be in the file of `model.weights`, with its
        /// shape, and no other beside them. `false` loads the tensors that fit and lists the
        /// others. Default true.
        strict: bool = true,
        /// Name of the dictionary in the file that holds the weights, such as `model_ema`; parts of
        /// nested ones are joined by dots. Default: the one under which most names and shapes fit.
        #[serde(skip_serializing_if = "Option::is_none")]
        part: Option<String> = None,
    }
}

keys! {
    /// `[train]`: how long, in which portions, and on what.
    TrainConfig {
        /// Passes over the training data. Default 1.
        #[schemars(extend("unit" = "epochs"))]
        epochs: u64 = 1,
        /// Optimizer steps after which the run ends even inside an epoch. Default: no limit.
        #[serde(skip_serializing_if = "Option::is_none")]
        #[schemars(extend("unit" = "steps"))]
        max_steps: Option<u64> = None,
        /// Images per optimizer step over all ranks (the global batch), which is `micro_batch_size`
        /// × `accumulate` × world size. Derived when left out; 64 when `micro_batch_size` is left
        /// out too. Images of an epoch that fill none any more are left out of it, others in each.
        #[serde(skip_serializing_if = "Option::is_none")]
        #[schemars(extend("unit" = "images"))]
        batch_size: Option<usize> = None,
        /// Images that one rank computes at a time. Derived when left out.
        #[serde(skip_serializing_if = "Option::is_none")]
        #[schemars(extend("unit" = "images"))]
        micro_batch_size: Option<usize> = None,
        /// Micro-batches whose gradients add up to one optimizer step. Derived when left out and
        /// the other two are given, else 1.
        #[serde(skip_serializing_if = "Option::is_none")]
        accumulate: Option<usize> = None,
        /// Number format of forward and backward: `f32`, `bf16` or `f16`. Parameters, their
        /// updates, normalizations and the loss are in `f32` always. Default `f32`.
        #[serde(with = "by_name")]
        #[schemars(schema_with = "by_name::schema::<Precision>")]
        precision: Precision = Precision::F32,
        /// Number format of evaluations: `f32`, or the one of `precision`, which is the default.
        /// One whose loss is no number in `f16` is done again in `f32`, and `trainer eval` takes
        /// `f32` where the ranks' devices do not have the other.
        #[serde(with = "by_name::option", skip_serializing_if = "Option::is_none")]
        #[schemars(schema_with = "by_name::schema::<Precision>")]
        eval_precision: Option<Precision> = None,
        /// Largest global norm of the gradient; a longer gradient is scaled down to it. Default:
        /// off.
        #[serde(skip_serializing_if = "Option::is_none")]
        clip_norm: Option<f64> = None,
        /// Share of each label that is spread evenly over all classes, in [0, 1). Default 0.
        label_smoothing: f64 = 0.0,
        /// Seed of the initial parameters, the order of the samples, dropout and generated data.
        /// Default 1.
        seed: u64 = 1,
        /// What computes: `auto` (a CUDA device, else a GPU through wgpu, else the CPU), `cpu`,
        /// `cuda` or `wgpu`; the last two need a program that is built with the feature of that
        /// name. Ranks of a node take one device after the other. Default `auto`.
        #[serde(with = "by_name")]
        #[schemars(schema_with = "by_name::schema::<DeviceChoice>")]
        device: DeviceChoice = DeviceChoice::Auto,
        /// What the layers of a model compute with: `auto` (the kernels of this program, on the CPU
        /// for everything and several times faster, on an NVIDIA GPU for convolutions, linear
        /// layers and attention too, on every GPU for most that is no product), `burn` (Burn's own
        /// operations alone), or `exact` (as `auto`, with direct convolutions in `f32`: in place of
        /// Winograd's on the CPU, and of those that multiply 16 bits of a number on a GPU, whose
        /// rounding errors are larger: 1e-5 of the largest value). With `f16`, Burn's operations
        /// compute on the CPU. Default `auto`.
        #[serde(with = "by_name")]
        #[schemars(schema_with = "by_name::schema::<Choice>")]
        kernels: Choice = Choice::Auto,
        /// Whether backward computes cheap activations anew instead of keeping them, which saves
        /// memory and takes time; always so with `zero-3`. Default false.
        recompute: bool = false,
        /// Minutes after which this process saves a checkpoint and ends with exit code 75, to be
        /// started again with `--resume auto`. Default: no limit.
        #[serde(skip_serializing_if = "Option::is_none")]
        max_minutes: Option<f64> = None,
        /// Steps of each epoch, and batches of each evaluation on each rank, at most. Default: no
        /// limit.
        #[serde(skip_serializing_if = "Option::is_none")]
        limit_batches: Option<u64> = None,
        /// Learns from, and evaluates on, this many global batches of the training images, without
        /// augmentation: a model that is able to learn at all soon knows them by heart. Default:
        /// off.
        #[serde(skip_serializing_if = "Option::is_none")]
        overfit_batches: Option<usize> = None,
        /// Whether the run only tries everything once: three steps and an evaluation of three
        /// batches, nothing is written. Default false.
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
    /// `[parallel]`: how the ranks work together.
    ParallelConfig {
        /// What each rank holds: everything (`ddp`), or its shard of the optimizer's state
        /// (`zero-1`), of the gradients too (`zero-2`), and of the parameters too (`zero-3`).
        /// Default `ddp`.
        #[serde(with = "by_name")]
        #[schemars(schema_with = "by_name::schema::<Strategy>")]
        strategy: Strategy = Strategy::Ddp,
        /// Over which ranks it shards: `all`; the ranks of each `node`, while the nodes hold copies
        /// of each other, so that parameters are gathered inside a node alone; or in the same way
        /// every so many ranks that follow each other. Default `all`.
        #[serde(with = "super::shard_within")]
        #[schemars(with = "String", extend("type" = "string or integer"))]
        shard_within: ShardWithin = ShardWithin::All,
        /// How bytes move between ranks: `auto` (shared memory within a host, and between hosts
        /// `mpi` where MPI started the ranks, else TCP), `shm`, `tcp`, `mpi`. Default `auto`.
        #[serde(with = "by_name")]
        #[schemars(schema_with = "by_name::schema::<TransportKind>")]
        transport: TransportKind = TransportKind::Auto,
        /// Who reduces gradients, and how: `auto` (this program), `node-first` (this program, the
        /// ranks of each host first), or `mpi` (MPI's own collectives, where MPI started the
        /// ranks). Default `auto`.
        #[serde(with = "by_name")]
        #[schemars(schema_with = "by_name::schema::<Algorithm>")]
        algorithm: Algorithm = Algorithm::Auto,
        /// Gradients, and sharded parameters, that travel together, in MiB; the first bucket has at
        /// most 1 MiB so that communication starts early. Default 8.
        #[schemars(extend("unit" = "MiB"))]
        bucket_mib: usize = 8,
        /// Buckets of parameters that `zero-3` gathers ahead of their use. Default 1.
        #[schemars(extend("unit" = "buckets"))]
        prefetch: usize = 1,
        /// Number format in which gradients in `f32` travel between ranks that share no memory:
        /// `none` (as they are), `bf16` (half the bytes, 8 of 24 bits) or `f16` (half the bytes, 11
        /// bits, a small range). Sums are taken in `f32`, and rounded where they are sent on.
        /// Default `none`.
        #[serde(with = "by_name")]
        #[schemars(schema_with = "by_name::schema::<Compression>")]
        compression: Compression = Compression::None,
        /// Whether the optimizer's state of a model on a GPU is kept in host memory, and steps are
        /// made by the processor: less memory of the GPU for slower steps. Default false.
        offload_optimizer: bool = false,
        /// Whether batch normalizations go by the statistics of the global batch and not by those
        /// of each rank's micro-batch: for micro-batches of few images. Default false.
        sync_batch_norm: bool = false,
        /// Seconds that one rank waits for the others in a collective before the run fails. The
        /// first collectives, before gradients are averaged, may take longer, and so may those for
        /// which a rank is late because of a slow disk. Ranks that die are noticed at once.
        /// Default 300.
        #[schemars(extend("unit" = "seconds"))]
        timeout_seconds: u64 = 300,
        /// Seconds after a failure of any rank until this process ends, whatever it is busy with:
        /// data, a kernel, a file system that hangs. A rank that waits for the others ends at once.
        /// Default 30.
        #[schemars(extend("unit" = "seconds"))]
        abort_seconds: u64 = 30,
    }
}

keys! {
    /// `[log]`: what is written while training.
    LogConfig {
        /// Steps from one line of `metrics.jsonl` to the next. Default 1.
        #[schemars(extend("unit" = "steps"))]
        every_steps: u64 = 1,
        /// Whether these lines have the norm of each parameter's gradient too, over all ranks and
        /// before clipping, as TensorBoard's files have. All gradients are looked at for it in
        /// those steps. Default false.
        gradient_norms: bool = false,
        /// Whether event files for TensorBoard are written into the run folder too. Default true.
        tensorboard: bool = true,
        /// Whether `report.html` is written into the run folder at the end. Default true.
        report: bool = true,
        /// Peak rate of one device, a GPU or all processors of a node, in 10¹² floating-point
        /// operations per second, to tell which share of it a run uses. Default: that of well-known
        /// GPUs, else unknown.
        #[serde(skip_serializing_if = "Option::is_none")]
        peak_tflops: Option<f64> = None,
    }
}

names! {
    /// A number of the evaluation that is watched.
    MonitorName {
        /// The accuracy: larger is better.
        #[default]
        Accuracy = "accuracy",
        /// The loss: smaller is better.
        Loss = "loss",
    }
}

keys! {
    /// `[checkpoint]`: when the state of the run is saved.
    CheckpointConfig {
        /// Steps from one checkpoint to the next. Default 0: none.
        #[schemars(extend("unit" = "steps"))]
        every_steps: u64 = 0,
        /// Epochs from one checkpoint to the next; 0 writes none after epochs. Default 1.
        #[schemars(extend("unit" = "epochs"))]
        every_epochs: u64 = 1,
        /// Minutes from one checkpoint to the next. Default 0: none.
        #[schemars(extend("unit" = "minutes"))]
        every_minutes: f64 = 0.0,
        /// Newest checkpoints that are kept. Default 3.
        #[schemars(extend("unit" = "checkpoints"))]
        keep: u64 = 3,
        /// Whether one is also written after each evaluation that is the best so far, and kept.
        /// Default true, if any are written at all (one of the three above is not 0).
        best: bool = true,
        /// By what evaluations are compared: `accuracy` or `loss`. Default `accuracy`.
        monitor: MonitorName = MonitorName::Accuracy,
    }
}

impl CheckpointConfig {
    /// Whether there are any.
    pub fn wanted(&self) -> bool {
        self.every_steps > 0 || self.every_epochs > 0 || self.every_minutes > 0.0
    }
}

keys! {
    /// `[early_stopping]`: when the run ends before its last epoch.
    EarlyStoppingConfig {
        /// Validation accuracy, from 0 to 1, at which the run ends. Default: off.
        #[serde(skip_serializing_if = "Option::is_none")]
        target_accuracy: Option<f64> = None,
        /// With a target: evaluations in a row that must reach it, default 1. Without: evaluations
        /// in a row that bring no better one, after which the run ends, default off.
        #[serde(skip_serializing_if = "Option::is_none")]
        #[schemars(extend("unit" = "evaluations"))]
        patience: Option<u64> = None,
        /// What has to get better, without a target: `accuracy` or `loss`. Default `accuracy`.
        monitor: MonitorName = MonitorName::default(),
        /// By how much it has to, at least. Default 0.
        min_delta: f64 = 0.0,
    }
}

impl EarlyStoppingConfig {
    /// Gives up the values that a target does not use and that it overrides.
    pub(super) fn forget_unused(&mut self, overridden: impl Fn(&str, &str) -> bool) {
        let by = "early_stopping.target_accuracy";
        let usual = Self::default();
        if self.target_accuracy.is_some() && overridden(by, "early_stopping.monitor") {
            self.monitor = usual.monitor;
        }
        if self.target_accuracy.is_some() && overridden(by, "early_stopping.min_delta") {
            self.min_delta = usual.min_delta;
        }
    }
}
