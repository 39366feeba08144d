//! Errors of training a model on several ranks.

use crate::Error;
use crate::bucket::BucketError;
use crate::precision::{LossScaleError, Precision};

/// An error in setting up a model or in training it on several ranks.
#[derive(Debug, thiserror::Error)]
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
         {first_rank} has {first}, rank {second_rank} has {second}; build the same model on \
         every rank"
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
        "rank {first_rank} and rank {second_rank} were given different options: {first} and \
         {second}; use the same configuration on every rank"
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
        "rank {first_rank} called {first}, and rank {second_rank} {second}: every rank makes the same calls in the \
         same order"
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
        "the ranks compute on different kinds of devices: {}; choose the device for all of them, so that a \
         rank that does not have it says why",
        on_ranks(kinds)
    )]
    DevicesDiffer {
        /// The kinds, and the ranks that compute on each.
        kinds: Vec<(String, Vec<usize>)>,
    },
    /// Another rank sent a description of its model that cannot be decoded.
    #[error(
        "rank {rank} sent a description of its model that is not valid: {reason}; start the same \
         version of the program on every rank"
    )]
    Description {
        /// The rank that sent it.
        rank: usize,
        /// The reason.
        reason: String,
    },
    /// A saved state does not fit the model or the optimizer.
    #[error(
        "cannot restore `{path}`: {reason}; continue with the model and the optimizer that were saved"
    )]
    Restore {
        /// Path of the tensor.
        path: String,
        /// The mismatch.
        reason: String,
    },
    /// Ranks restored another state than rank 0.
    #[error(
        "the ranks {ranks:?} have restored other parameters than rank 0; every rank continues from the same checkpoint"
    )]
    RestoredDiffer {
        /// The ranks with different parameters.
        ranks: Vec<usize>,
    },
    /// Checkpoints cannot be written.
    #[error("no checkpoints can be written: {reason}")]
    Checkpoints {
        /// The reason.
        reason: String,
    },
    /// A thread that the optimizer needs did not start.
    #[error(
        "cannot start the thread that steps large parameters: {reason}; end other programs, or allow more threads"
    )]
    Thread {
        /// The system's error message.
        reason: String,
    },
    /// A trainable parameter has an element type that cannot be averaged.
    #[error("parameter `{path}` holds {dtype}; trainable parameters are f32, f16, bf16 or f64")]
    ParameterType {
        /// Path of the parameter.
        path: String,
        /// Its element type, in Burn's words.
        dtype: String,
    },
    /// A trainable parameter already has a reparameterization.
    #[error(
        "parameter `{path}` has a reparameterization ({name}) and is trainable itself; fold it \
         with `materialize()` or freeze the parameter. Of a model that a Parallel trains take `valid()` or `into_model()`"
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
         support; fold it with `materialize()` or train in f32"
    )]
    ReparameterizedInLowPrecision {
        /// Path of the parameter.
        path: String,
        /// Name of the reparameterization.
        name: String,
    },
    /// The optimizer is configured with Burn's clipping of single tensors.
    #[error(
        "the optimizer is configured to clip the gradient of each parameter by itself, which is \
         not supported; use ParallelOptions::clip_norm, the norm over all gradients"
    )]
    ClipsEachParameter,
    /// A parameter cannot be sharded.
    #[error(
        "parameter `{path}` holds {dtype}, and {strategy} shards f32 parameters alone; use ddp, or \
         f32 parameters (for less memory in forward and backward see `precision`)"
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
        "sync_batch_norm is on, and `{path}` is Burn's BatchNorm, which goes by the statistics of its own rank; take a \
         batch normalization that calls sum_over_ranks, as those of the crate `models` do (its type must have another \
         name), or turn the option off"
    )]
    NotSynchronized {
        /// Path of the layer.
        path: String,
    },
    /// A device whose backend this build lacks.
    #[error(
        "burn-dist is built without the backend of the device {device}: build it with the feature `cuda` or `wgpu` that \
         Burn has, or compute on Device::flex()"
    )]
    NotBuiltFor {
        /// The device, in Burn's words.
        device: String,
    },
    /// The model's tensors are on several devices of one rank.
    #[error(
        "the model is on several devices: {}; a rank computes on one, so build all of the model there",
        devices.join(", ")
    )]
    SeveralDevices {
        /// The devices, in Burn's words.
        devices: Vec<String>,
    },
    /// Ranks step with different learning rates.
    #[error(
        "the ranks step with different learning rates: {}; compute the same one on every rank",
        by_rank(rates)
    )]
    LearningRatesDiffer {
        /// Learning rate of each rank.
        rates: Vec<f64>,
    },
    /// A parameter that every rank would step on its own, with different results.
    #[error(
        "parameter `{path}` holds {dtype}, and this optimizer adds whole parameters up, which on this device comes out \
         in other bits on every rank; use f32 parameters (for less memory in forward and backward see `precision`), or \
         an optimizer that steps each element by itself"
    )]
    SumsVary {
        /// Path of the parameter.
        path: String,
        /// Its element type.
        dtype: crate::DType,
    },
    /// A frozen parameter is not initialized.
    #[error(
        "parameter `{path}` is frozen and has no value yet: zero-3 shards a model before its \
         parameters exist, and takes them for trainable; load the model's weights first, on every \
         rank, or read it once with `val()`"
    )]
    FrozenUnseen {
        /// Path of the parameter.
        path: String,
    },
    /// A matrix optimizer is given a parameter that is not a matrix.
    #[error(
        "the optimizer of parameter `{path}` steps parameters with two dimensions alone, and this \
         one has the shape {shape:?}; give such parameters another optimizer in a group \
         (ParameterOptimizer::with_group)"
    )]
    NotAMatrix {
        /// Path of the first affected parameter.
        path: String,
        /// Its shape.
        shape: Vec<usize>,
    },
    /// The ranks cannot be divided into sets of this size.
    #[error(
        "shards within {ranks} ranks need a multiple of {ranks} ranks, and there are {world_size} \
         ranks; set `shard_within` to a divisor of that, to `node`, or to `all`"
    )]
    ShardWithin {
        /// Ranks in a set.
        ranks: std::num::NonZeroUsize,
        /// Number of all ranks.
        world_size: usize,
    },
    /// Nodes have different numbers of ranks, so their shards would differ.
    #[error(
        "shards within a node need the same number of ranks on every node, and the nodes have {}; \
         start equally many on each, or set `shard_within` to a number of ranks or to `all`",
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
    #[error("{option} is {value}, it must be {expected}")]
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
        "the device {device} does not support {precision}; choose another precision ({}) or \
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
        "the model has no parameter that requires gradients; create it on `device.autodiff()` \
         and freeze only a part of it"
    )]
    NothingToTrain,
    /// The loss is not a scalar.
    #[error(
        "the loss has {elements} elements, whose sum the gradients would be of; reduce it to one number, as with mean()"
    )]
    LossNotScalar {
        /// Number of elements of the loss.
        elements: usize,
    },
    /// The loss has no gradient.
    #[error(
        "the loss was not computed from trainable parameters on an autodiff device; create the \
         model on `device.autodiff()`"
    )]
    UntrackedLoss,
    /// The loss depends on a parameter that was read without its gradient hook.
    #[error(
        "the loss depends on `{path}` by another way than its value as a field of `model()`: a ModuleVisitor or a \
         Deref (`&*field`) reads a parameter without what its gradient is averaged through; read it with \
         `field.val()`"
    )]
    ReadWithoutHook {
        /// Path of the first affected parameter.
        path: String,
    },
    /// No parameter had a gradient in this step.
    #[error(
        "no parameter of this model had a gradient on any rank: the loss does not depend on any, or is that of another \
         model"
    )]
    NoGradients,
    /// A call between micro-batches of a step that is allowed only between steps.
    #[error(
        "{what} between steps alone, and {done} of {accumulate} micro-batches of this one are done; at the end of the \
         data take them as a step (step_early) or leave them out (discard)"
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
    #[error("the values of `{path}` could not be read: {reason}")]
    Read {
        /// Path of the parameter or buffer.
        path: String,
        /// The device's error message.
        reason: String,
    },
    /// Replicas differ that should be equal.
    #[error(
        "the parameters of rank(s) {} differ from those of rank 0; memory or communication is \
         faulty, or a rank changed its model by itself",
        list(ranks)
    )]
    ReplicasDiffer {
        /// The ranks that differ from rank 0.
        ranks: Vec<usize>,
    },
}

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
fn by_rank(numbers: &[f64]) -> String {
    let mut groups: Vec<(String, Vec<usize>)> = Vec::new();
    for (rank, number) in numbers.iter().map(f64::to_string).enumerate() {
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
