//! Keeps replicas equal: broadcast from rank 0, checksums, and a parameter's place in autodiff when
//! its value is replaced.

use burn::module::{Module, ModuleMapper, ModuleVisitor, Param};
use burn::tensor::{Bool, ExecutionError, GradientCheckpointingStrategy, Int, Tensor, TensorData};

use super::visited::keeps_path;
use super::{ParallelError, ParallelOptions};
use crate::ProcessGroup;
use crate::bucket::ParameterSpec;
use crate::zero::ShardedParameters;

/// Selects the tensors to broadcast.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Which {
    /// All tensors.
    All,
    /// Tensors without gradients: running statistics, frozen parameters, constants.
    Buffers,
}

/// Replaces tensors of `model` by those of rank 0. A collective call.
pub(super) fn broadcast<M: Module>(
    model: M,
    which: Which,
    group: &ProcessGroup,
) -> (M, Result<(), ParallelError>) {
    let mut broadcast = Broadcast {
        group,
        which,
        path: Vec::new(),
        outcome: Ok(()),
    };
    fold_statistics(&model);
    let model = model.map(&mut broadcast);
    (model, broadcast.outcome)
}

/// Folds the last update of running statistics into their value.
///
/// They keep it apart until the next read. `valid` folds it into the state that the model shares
/// with its copy, and would also initialize all lazy parameters.
pub(super) fn fold_statistics<M: Module>(model: &M) {
    drop(model.clone().map(&mut WithoutUninitialized).valid());
}

struct WithoutUninitialized;

impl ModuleMapper for WithoutUninitialized {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        match param.is_initialized() {
            true => param,
            false => Param::initialized(param.id, Tensor::zeros([1; D], &param.lazy_device())),
        }
    }
}

/// The options that keep replicas equal to the bit; see [`ParallelOptions::carried_out`].
///
/// # Errors
/// [`ParallelError::SumsVary`] if a parameter cannot be stepped by one rank for all.
pub(super) fn keep_equal(
    options: ParallelOptions,
    carried_out: ParallelOptions,
    parameters: &[ParameterSpec],
) -> Result<ParallelOptions, ParallelError> {
    if carried_out == options {
        return Ok(options);
    }
    if let Some(other) = parameters.iter().find(|p| p.dtype != crate::DType::F32) {
        return Err(ParallelError::SumsVary {
            path: other.path.clone(),
            dtype: other.dtype,
        });
    }
    if carried_out.strategy != options.strategy {
        tracing::info!(
            "one rank updates each parameter, because sums are not deterministic on this device"
        );
    } else {
        tracing::info!(
            "one set of shards over all ranks, because sums are not deterministic on this device \
             and two sets would diverge"
        );
    }
    Ok(carried_out)
}

/// Checksum of the trainable parameters: their bytes in visit order.
pub(super) fn checksum<M: Module>(model: &M) -> Result<Checksum, ParallelError> {
    let mut hash = HashParameters {
        path: Vec::new(),
        hasher: blake3::Hasher::new(),
        outcome: Ok(()),
    };
    model.visit(&mut hash);
    hash.outcome?;
    Ok(Checksum(*hash.hasher.finalize().as_bytes()))
}

/// The same checksum for parameters that are read one by one, in visit order. A collective call.
pub(super) fn checksum_of(
    store: &ShardedParameters,
    parameters: usize,
) -> Result<Checksum, ParallelError> {
    let mut hasher = blake3::Hasher::new();
    for parameter in 0..parameters {
        let data = store.read(parameter)?.try_into_data();
        let data = data.map_err(|error| crate::Error::Device {
            reason: error.to_string(),
        })?;
        hasher.update(data.as_bytes());
    }
    store.release();
    Ok(Checksum(*hasher.finalize().as_bytes()))
}

/// A 256-bit checksum of a model's trainable parameters. Equal bits give equal checksums.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Checksum(pub [u8; 32]);

impl std::fmt::Display for Checksum {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl std::fmt::Debug for Checksum {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Checksum({self})")
    }
}

/// A parameter's place in autodiff, taken before its value is replaced on the plain device.
#[derive(Clone)]
pub(super) struct AutodiffPlace {
    requires_grad: bool,
    checkpointing: Option<GradientCheckpointingStrategy>,
}

impl AutodiffPlace {
    pub(super) fn of<const D: usize>(parameter: &Tensor<D>) -> Self {
        Self {
            requires_grad: parameter.is_require_grad(),
            checkpointing: parameter.gradient_checkpointing_strategy(),
        }
    }

    pub(super) fn restore<const D: usize>(self, value: Tensor<D>) -> Tensor<D> {
        let Some(strategy) = self.checkpointing else {
            return value;
        };
        value
            .autodiff()
            .with_gradient_checkpointing_strategy(strategy)
            .set_require_grad(self.requires_grad)
    }
}

/// Whether a parameter is trainable and still lazy. Does not initialize it.
///
/// Burn keeps to itself whether a lazy parameter is frozen, but applies it to a value that is
/// loaded. So this loads one element that pretends to have the parameter's shape.
pub(super) fn is_lazy_and_trainable<const D: usize>(param: &Param<Tensor<D>>) -> bool {
    let device = param.lazy_device();
    if param.is_initialized() || !device.is_autodiff() {
        return false;
    }
    let value = Tensor::<D>::zeros([1; D], &device.inner()).expand(param.lazy_shape());
    let loaded = param.clone().transform_for_load(value.autodiff(), param.id);
    loaded.is_require_grad()
}

struct Broadcast<'a> {
    group: &'a ProcessGroup,
    which: Which,
    path: Vec<String>,
    outcome: Result<(), ParallelError>,
}

impl Broadcast<'_> {
    /// Rank 0's values for a tensor with the values `own`; `None` if `own` already are rank 0's.
    fn values(&mut self, own: Result<TensorData, ExecutionError>) -> Option<TensorData> {
        if self.outcome.is_err() {
            return None;
        }
        match self.exchange(own) {
            Ok(values) => (self.group.rank() != 0).then_some(values),
            Err(error) => {
                self.outcome = Err(error);
                None
            }
        }
    }

    fn exchange(
        &self,
        own: Result<TensorData, ExecutionError>,
    ) -> Result<TensorData, ParallelError> {
        let unreadable = |reason: String| ParallelError::read(&self.path.join("."), reason);
        let (mut bytes, shape, dtype) = own
            .map_err(|error| unreadable(error.to_string()))?
            .into_parts();
        self.group.broadcast::<u8>(&mut bytes, 0)?;
        TensorData::try_from_bytes(bytes, shape, dtype)
            .map_err(|error| unreadable(error.to_string()))
    }
}

impl ModuleMapper for Broadcast<'_> {
    keeps_path!();

    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        if self.which == Which::Buffers
            && (is_lazy_and_trainable(&param) || param.is_require_grad())
        {
            return param;
        }
        let Some(values) = self.values(param.base().inner().try_into_data()) else {
            return param;
        };
        param.map(|value| {
            let place = AutodiffPlace::of(&value);
            place.restore(Tensor::from_data(
                values,
                (&value.device().inner(), value.dtype()),
            ))
        })
    }

    fn map_int<const D: usize>(&mut self, param: Param<Tensor<D, Int>>) -> Param<Tensor<D, Int>> {
        let Some(values) = self.values(param.base().inner().try_into_data()) else {
            return param;
        };
        param.map(|value| Tensor::from_data(values, (&value.device(), value.dtype())))
    }

    fn map_bool<const D: usize>(
        &mut self,
        param: Param<Tensor<D, Bool>>,
    ) -> Param<Tensor<D, Bool>> {
        let Some(values) = self.values(param.base().inner().try_into_data()) else {
            return param;
        };
        param.map(|value| Tensor::from_data(values, &value.device()))
    }
}

struct HashParameters {
    path: Vec<String>,
    hasher: blake3::Hasher,
    outcome: Result<(), ParallelError>,
}

impl ModuleVisitor for HashParameters {
    keeps_path!();

    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        if !param.is_require_grad() || self.outcome.is_err() {
            return;
        }
        match param.base().inner().try_into_data() {
            Ok(data) => {
                self.hasher.update(data.as_bytes());
            }
            Err(error) => {
                self.outcome = Err(ParallelError::read(&self.path.join("."), error));
            }
        }
    }
}
