//! Errors of training a model on several ranks.

use crate::bucket::BucketError;
use crate::precision::{LossScaleError, Precision};
use crate::{Error, VirtualRanksError};

/// An error in setting up a model or in training it on several ranks.
#[derive(thiserror::Error)]
pub enum ParallelError {
    /// A collective failed, here or on another rank.
    #[error(transparent)]
    Group(#[from] Error),
    /// Gradients could not be collected or reduced.
    #[error(transparent)]
    Bucket(#[from] BucketError),
    /// Two ranks built different models.
    #[error(
        "the models of rank {first_rank} and rank {second_rank} differ at `{path}`: rank \
         {first_rank} has {first}, rank {second_rank} has {second}. Build the same model on every \
         rank"
    )]
    ModelsDiffer {
        /// The lower of the two ranks.
        first_rank: usize,
        /// The higher of the two ranks.
        second_rank: usize,
        /// Path of the first difference in visit order.
        path: String,
        /// Entry of the lower rank at this path.
        first: String,
        /// Entry of the higher rank at this path.
        second: String,
    },
    /// Two ranks were given different options.
    #[error(
        "rank {first_rank} and rank {second_rank} have different options: {first} and {second}. \
         Use the same configuration on every rank"
    )]
    OptionsDiffer {
        /// The lower of the two ranks.
        first_rank: usize,
        /// The higher of the two ranks.
        second_rank: usize,
        /// Options of the lower rank.
        first: String,
        /// Options of the higher rank.
        second: String,
    },
    /// Two ranks are at different points of their training.
    #[error(
        "rank {first_rank} called {first}, but rank {second_rank} called {second}. Every rank must \
         make the same calls in the same order"
    )]
    CallsDiffer {
        /// The lower of the two ranks.
        first_rank: usize,
        /// The higher of the two ranks.
        second_rank: usize,
        /// Call of the lower rank, and the call before it.
        first: String,
        /// Call of the higher rank, and the call before it.
        second: String,
    },
    /// Ranks compute on different kinds of devices. These round differently, so replicas would
    /// diverge.
    #[error(
        "the ranks use different kinds of devices: {}. Choose one device kind for all ranks, and a \
         rank without it reports why",
        on_ranks(kinds)
    )]
    DevicesDiffer {
        /// The kinds, and the ranks that compute on each.
        kinds: Vec<(String, Vec<usize>)>,
    },
    /// Another rank sent a description of its model that cannot be decoded.
    #[error(
        "rank {rank} sent an invalid model description: {reason}. Start the same version of the \
         program on every rank"
    )]
    Description {
        /// The rank that sent it.
        rank: usize,
        /// The reason.
        reason: String,
    },
    /// A saved state does not fit the model or the optimizer.
    #[error(
        "cannot restore `{path}`: {reason}. Continue with the model and optimizer of the checkpoint"
    )]
    Restore {
        /// Path of the tensor.
        path: String,
        /// The mismatch.
        reason: String,
    },
    /// Ranks restored another state than rank 0.
    #[error(
        "the ranks {ranks:?} restored other parameters than rank 0. Resume every rank from the \
         same checkpoint"
    )]
    RestoredDiffer {
        /// The ranks with different parameters.
        ranks: Vec<usize>,
    },
    /// Checkpoints cannot be written.
    #[error("cannot write checkpoints: {reason}")]
    Checkpoints {
        /// The reason.
        reason: String,
    },
    /// A thread that the optimizer needs did not start.
    #[error(
        "cannot start the thread for large optimizer updates: {reason}. End other programs, or \
         allow more threads"
    )]
    Thread {
        /// The system's error message.
        reason: String,
    },
    /// A trainable parameter has an element type that cannot be averaged.
    #[error("parameter `{path}` holds {dtype}; trainable parameters must be f32, f16, bf16 or f64")]
    ParameterType {
        /// Path of the parameter.
        path: String,
        /// Its element type, in Burn's words.
        dtype: String,
    },
    /// A trainable parameter already has a reparameterization.
    #[error(
        "parameter `{path}` has a reparameterization ({name}) and is itself trainable. Fold it \
         with `materialize()`, or freeze the parameter. A model inside Parallel needs `valid()` or \
         `into_model()` first"
    )]
    Reparameterized {
        /// Path of the parameter.
        path: String,
        /// Name of the reparameterization.
        name: String,
    },
    /// A parameter has a reparameterization that mixed precision cannot combine with a cast.
    #[error(
        "parameter `{path}` has a reparameterization ({name}), which mixed precision does not \
         support. Fold it with `materialize()`, or train in f32"
    )]
    ReparameterizedInLowPrecision {
        /// Path of the parameter.
        path: String,
        /// Name of the reparameterization.
        name: String,
    },
    /// The optimizer is configured with Burn's clipping of single tensors.
    #[error(
        "the optimizer clips the gradient of each parameter separately, which is not supported. \
         Use ParallelOptions::clip_norm, the norm over all gradients"
    )]
    ClipsEachParameter,
    /// A parameter cannot be sharded.
    #[error(
        "parameter `{path}` holds {dtype}, but {strategy} shards only f32 parameters. Use ddp or \
         f32 parameters; `precision` saves memory in forward and backward"
    )]
    NotSharded {
        /// Path of the parameter.
        path: String,
        /// Its element type.
        dtype: crate::DType,
        /// The strategy.
        strategy: super::Strategy,
    },
    /// A layer would ignore an option.
    #[error(
        "sync_batch_norm is on, but `{path}` is Burn's BatchNorm, which uses the statistics of its \
         own rank. Use a batch normalization that calls sum_over_ranks, such as those of the crate \
         `models` (under another type name), or turn the option off"
    )]
    NotSynchronized {
        /// Path of the layer.
        path: String,
    },
    /// A device whose backend this build lacks.
    #[error(
        "burn-dist was built without the backend of the device {device}. Build it with Burn's \
         feature `cuda` or `wgpu`, or use Device::flex()"
    )]
    NotBuiltFor {
        /// The device, in Burn's words.
        device: String,
    },
    /// The model's tensors are on several devices of one rank.
    #[error(
        "the model is on several devices: {}. Build the whole model on one device",
        devices.join(", ")
    )]
    SeveralDevices {
        /// The devices, in Burn's words.
        devices: Vec<String>,
    },
    /// Ranks step with different learning rates.
    #[error(
        "the ranks use different learning rates: {}. Compute the same one on every rank",
        by_rank(rates)
    )]
    LearningRatesDiffer {
        /// Learning rate of each rank.
        rates: Vec<f64>,
    },
    /// Ranks have evaluated a sharded model with unequal numbers of forward passes.
    #[error(
        "under zero-3 the ranks read different numbers of parameters in evaluations: {}. Run the \
         same number of forward passes on every rank",
        by_rank(reads)
    )]
    EvaluationsDiffer {
        /// Parameters that each rank has read since the last step.
        reads: Vec<u64>,
    },
    /// A parameter that every rank would step on its own, with different results.
    #[error(
        "parameter `{path}` holds {dtype}, and this optimizer reduces over whole parameters, which \
         is not deterministic on this device. Use f32 parameters (`precision` saves memory in \
         forward and backward), or an element-wise optimizer"
    )]
    SumsVary {
        /// Path of the parameter.
        path: String,
        /// Its element type.
        dtype: crate::DType,
    },
    /// A matrix optimizer is given a parameter that is not a matrix.
    #[error(
        "the optimizer of `{path}` updates only two-dimensional parameters, but its shape is \
         {shape:?}. Put it into a group with another optimizer (ParameterOptimizer::with_group)"
    )]
    NotAMatrix {
        /// Path of the first affected parameter.
        path: String,
        /// Its shape.
        shape: Vec<usize>,
    },
    /// The ranks cannot be divided into sets of this size.
    #[error(
        "sharding within {ranks} ranks needs a multiple of {ranks} ranks, but the world size is \
         {world_size}. Set `shard_within` to a divisor of it, `node` or `all`"
    )]
    ShardWithin {
        /// Ranks in a set.
        ranks: std::num::NonZeroUsize,
        /// Number of all ranks.
        world_size: usize,
    },
    /// Nodes have different numbers of ranks, so their shards would differ.
    #[error(
        "sharding within a node needs the same number of ranks on every node, but the nodes have \
         {}. Start the same number on each, or set `shard_within` to a number of ranks or `all`",
        list(ranks)
    )]
    UnevenNodes {
        /// Number of ranks on each node.
        ranks: Vec<usize>,
    },
    /// A parameter group selects no parameter of the model.
    #[error(
        "no parameter of the model is in the group `{group}`; its parameters are {}",
        paths.join(", ")
    )]
    EmptyGroup {
        /// Name of the group.
        group: String,
        /// Some of the model's parameters.
        paths: Vec<String>,
    },
    /// An option has an invalid value.
    #[error("{option} is {value}, but must be {expected}")]
    Option {
        /// Name of the option.
        option: &'static str,
        /// Its value.
        value: String,
        /// The accepted values.
        expected: &'static str,
    },
    /// The device cannot compute in this precision.
    #[error(
        "the device {device} does not support {precision}. Choose another precision ({}) or \
         another device",
        precisions(supported)
    )]
    Precision {
        /// The precision.
        precision: Precision,
        /// The device, in Burn's words.
        device: String,
        /// The supported precisions.
        supported: Vec<Precision>,
    },
    /// The loss scale is at its floor and gradients still overflow.
    #[error(transparent)]
    LossScale(#[from] LossScaleError),
    /// The model has no trainable parameters.
    #[error(
        "the model has no parameter that requires gradients. Create it on `device.autodiff()` and \
         freeze only part of it"
    )]
    NothingToTrain,
    /// The loss is not a scalar.
    #[error(
        "the loss must be a scalar, got a tensor of {elements} elements. Reduce it, for example \
         with mean()"
    )]
    LossNotScalar {
        /// Number of elements of the loss.
        elements: usize,
    },
    /// The loss has no gradient.
    #[error(
        "the loss does not depend on trainable parameters on an autodiff device. Create the model \
         on `device.autodiff()`"
    )]
    UntrackedLoss,
    /// The loss depends on a parameter that was read without its gradient hook.
    #[error(
        "the loss uses `{path}` without the gradient hook: a ModuleVisitor or a Deref (`&*field`) \
         reads the parameter directly. Read it with `field.val()`, as a field of `model()`"
    )]
    ReadWithoutHook {
        /// Path of the first affected parameter.
        path: String,
    },
    /// No parameter had a gradient in this step.
    #[error(
        "no parameter of this model has a gradient on any rank. Check that the loss was computed \
         with this model"
    )]
    NoGradients,
    /// The weights of a step cannot be divided by.
    #[error(
        "the weights of this step add up to {total} over all ranks; give at least one micro-batch a weight above 0"
    )]
    NoWeight {
        /// Sum of all weights.
        total: f64,
    },
    /// The virtual ranks cannot be divided among the ranks.
    #[error(transparent)]
    VirtualRanks(#[from] VirtualRanksError),
    /// A call that virtual ranks do not allow.
    #[error(
        "with virtual_ranks, every step has all its micro-batches. Use backward_weighted with \
         weight 0 instead of fewer micro-batches, and next_share instead of join"
    )]
    WholeStepsOnly,
    /// A rank has no batch while another has one.
    #[error("rank {rank} has no batch at all, and another rank has; give every rank at least one")]
    NoBatch {
        /// The rank.
        rank: usize,
    },
    /// A call between micro-batches of a step that is allowed only between steps.
    #[error(
        "{what} only between steps, but {done} of {accumulate} micro-batches of this step are \
         done. At the end of the data, call step_early to use them or discard to drop them"
    )]
    WithinStep {
        /// The call, in words.
        what: &'static str,
        /// Micro-batches of this step that backward has seen.
        done: usize,
        /// Micro-batches in a step.
        accumulate: usize,
    },
    /// The values of a parameter could not be read or written.
    #[error("cannot read the values of `{path}`: {reason}")]
    Read {
        /// Path of the parameter or buffer.
        path: String,
        /// The device's error message.
        reason: String,
    },
    /// Replicas differ that should be equal.
    #[error(
        "the parameters of rank(s) {} differ from those of rank 0. Either memory or communication \
         is faulty, or a rank changed its model itself",
        list(ranks)
    )]
    ReplicasDiffer {
        /// The ranks that differ from rank 0.
        ranks: Vec<usize>,
    },
}

crate::debug_is_display!(ParallelError);

impl ParallelError {
    pub(crate) fn restore(path: &str, reason: impl ToString) -> Self {
        Self::Restore {
            path: path.to_owned(),
            reason: reason.to_string(),
        }
    }

    pub(crate) fn read(path: &str, reason: impl ToString) -> Self {
        Self::Read {
            path: path.to_owned(),
            reason: reason.to_string(),
        }
    }

    /// The failed collective that caused this error, if any.
    ///
    /// Its [`PeerFailed`](crate::CollectiveError::PeerFailed) names the rank that ended the others.
    pub fn collective(&self) -> Option<&crate::CollectiveError> {
        match self {
            Self::Group(error) | Self::Bucket(BucketError::Group(error)) => error.collective(),
            _ => None,
        }
    }
}

/// The ranks with each number, the most frequent number first.
fn by_rank<T: ToString>(numbers: &[T]) -> String {
    let mut groups: Vec<(String, Vec<usize>)> = Vec::new();
    for (rank, number) in numbers.iter().map(T::to_string).enumerate() {
        match groups.iter_mut().find(|(other, _)| *other == number) {
            Some((_, ranks)) => ranks.push(rank),
            None => groups.push((number, vec![rank])),
        }
    }
    groups.sort_by_key(|(_, ranks)| std::cmp::Reverse(ranks.len()));
    on_ranks(&groups)
}

fn precisions(all: &[Precision]) -> String {
    let names: Vec<&str> = all.iter().map(|p| p.name()).collect();
    names.join(", ")
}

fn on_ranks(kinds: &[(String, Vec<usize>)]) -> String {
    let kinds = kinds.iter();
    let kinds = kinds.map(|(kind, ranks)| format!("{kind} on rank(s) {}", list(ranks)));
    kinds.collect::<Vec<_>>().join("; ")
}

fn list(numbers: &[usize]) -> String {
    let numbers: Vec<String> = numbers.iter().map(ToString::to_string).collect();
    numbers.join(", ")
}
