//! [`Parallel`]: a model that several ranks train together.
//!
//! It averages gradients while backward runs, steps the optimizer and keeps replicas equal. The
//! strategy is an option; the training loop stays the same:
//!
//! ```
//! # use burn::{nn::{Linear, LinearConfig}, optim::AdamWConfig, tensor::{Device, Tensor}};
//! # use burn_dist::{ProcessGroup, parallel::{Parallel, ParallelError, Strategy}};
//! # fn main() -> Result<(), ParallelError> {
//! let group = ProcessGroup::single();
//! let device = Device::flex().autodiff();
//! let model: Linear = LinearConfig::new(10, 1).init(&device);
//! let mut parallel = Parallel::new(model, AdamWConfig::new(), Strategy::Ddp, &group)?;
//! for _ in 0..3 {
//!     let batch = Tensor::<2>::ones([32, 10], &device);
//!     let loss = parallel.model().forward(batch).square().mean();
//!     parallel.backward(loss)?;
//!     parallel.step(1e-3)?;
//! }
//! let trained = parallel.valid()?;
//! # Ok(())
//! # }
//! ```

mod autocast;
mod cut;
mod describe;
mod ema;
mod error;
mod estimate;
mod foreign;
mod gradients;
mod groups;
mod join;
mod optimizer;
mod options;
mod plain;
mod replicas;
mod shard_groups;
mod shares;
mod state;
mod statistics;
mod step;
mod taken;
mod tensor_fields;
mod trained;
mod unhooked;
mod update;
mod visited;
mod weighted;

use std::fmt;
use std::sync::Arc;

use burn::module::Module;
use burn::tensor::{Device, FloatDType};

pub use crate::bucket::{BucketError, BucketSizes, ParameterSpec};
pub use autocast::autocast;
pub use ema::{EmaOptions, SwaOptions};
pub use error::ParallelError;
pub use estimate::{MemoryEstimate, ParameterState};
pub use gradients::Gradients;
pub use groups::{ParameterGroup, is_norm_or_bias, path_matches};
pub use join::{Join, Turn};
pub use optimizer::ParameterOptimizer;
pub use options::{ParallelOptions, ShardWithin, Strategy, UnknownRanks};
pub use replicas::Checksum;
pub use shares::Share;
pub(crate) use state::reshaped;
pub use state::{StatePart, StateShare, StateSourceRead, StateValues};
pub use step::StepReport;
pub use trained::TrainedValues;

use crate::autograd::{GradHooks, ParameterSource, RankSums, forget_depth, sum_over};
use crate::bucket::{Partition, Reducer};
use crate::precision::LossScale;
pub use crate::precision::{LossScaleError, LossScaleOptions, Precision};
use crate::zero::ShardedParameters;
use crate::{ProcessGroup, backend};
use cut::{pieces_of, take_pieces};
use describe::Description;
use ema::Ema;
use optimizer::OptimizerState;
use plain::Bare;
use replicas::Which;
use shard_groups::ShardGroups;
use shares::VirtualShares;
use weighted::Weights;

/// A model that all ranks of a group train together.
///
/// Every rank makes the same calls in the same order.
///
/// **Gradients** are averaged over ranks. If losses are means over micro-batches of equal size, a
/// step equals the step of one process on the global batch. The optimizer skips a parameter that no
/// rank has a gradient for, as Burn does. If only some ranks have one, it counts as zero on the
/// others.
///
/// **Buffers** (running statistics of BatchNorm, frozen parameters, integer tensors) are equal on
/// all ranks when training begins. After that, each rank's running statistics follow its own
/// micro-batches. Call [`sync_buffers`](Self::sync_buffers) before evaluation to use those of rank
/// 0. With [`ParallelOptions::sync_batch_norm`] they follow the global batch, equally on all ranks.
///
/// A buffer must be a `Param`. A plain `Tensor` field is a constant to Burn: it is not read,
/// compared, broadcast, cast or saved, and [`new`](Self::new) names it in a warning. Make it a
/// `Param` and freeze it if it must be equal on all ranks or saved.
///
/// **Precision**: if [`ParallelOptions::precision`] is lower than `f32`, layers see their `f32`
/// parameters cast to that type, and gradients come back in `f32`. The loop casts inputs to
/// [`compute_dtype`](Self::compute_dtype), and the model's output to `f32` before the loss. In
/// `f16` the loss is scaled, and if gradients overflow on any rank, all ranks skip the step.
///
/// - A layer that reads its parameters within [`full_precision`](crate::autograd::full_precision)
///   sees them in `f32`. All other layers compute in the low type, also Burn's normalizations.
/// - Burn's `BatchNorm` then keeps its running statistics in the low type during training. It is
///   recognised by its type name: give a layer of your own another name.
/// - Burn's `Lstm` and `Gru` mix types and panic. Call them within `full_precision`, on `f32`
///   inputs.
/// - Copies such as [`valid`](Self::valid) compute in `f32`.
///   [`evaluate_autocast`](Self::evaluate_autocast) evaluates in the low type.
pub struct Parallel<M: Module> {
    /// `None` only while a method replaces the model.
    model: Option<M>,
    /// Source of copies without the hooks of training.
    bare: Bare<M>,
    group: ProcessGroup,
    /// The ranks over which state is sharded.
    shards: ShardGroups,
    reducer: Arc<Reducer>,
    /// The parameters, if every rank keeps a shard of them; the model then has placeholders.
    store: Option<Arc<ShardedParameters>>,
    optimizer: OptimizerState,
    options: ParallelOptions,
    /// Set in `f16` only.
    loss_scale: Option<LossScale>,
    ema: Option<Ema>,
    /// The ranks over which batch normalizations sum, if they are synchronised.
    sums: Option<RankSums>,
    /// This rank's virtual ranks, if there are any.
    shares: Option<VirtualShares>,
    /// Micro-batches of the current step that backward has seen.
    micro_batches: usize,
    weights: Weights,
}

/// Loads parameters and buffers of a saved state into `model`, for use without more training.
///
/// If the state has averages of the parameters, it loads those. Optimizer state is not read.
///
/// # Errors
///
/// Fails if the state does not fit the model.
pub fn load_model<M: Module>(model: M, source: &dyn StateSourceRead) -> Result<M, ParallelError> {
    let (model, outcome) = state::restore_model(model, source, false);
    outcome?;
    ema::load(model, source)
}

impl<M: Module> fmt::Debug for Parallel<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (rank, size) = (self.group.rank(), self.group.size());
        write!(
            f,
            "Parallel({}, {} parameters, rank {rank} of {size})",
            self.options.strategy,
            self.num_parameters()
        )
    }
}

impl<M: Module> Parallel<M> {
    /// Prepares `model`, built on an autodiff device, for training on all ranks of `group`.
    ///
    /// Compares paths, shapes, element types and order of all parameters and buffers across ranks,
    /// and also optimizer settings and options. Then broadcasts the values of rank 0. `optimizer`
    /// is one of Burn's configurations or a [`ParameterOptimizer`]; `options` are
    /// [`ParallelOptions`] or just a [`Strategy`].
    ///
    /// # Errors
    ///
    /// - Models or optimizers differ; the error names the first path.
    /// - Options are invalid or differ between ranks.
    /// - The model has no trainable parameters, is on several devices, or is on a device that this
    ///   crate was not built for.
    /// - A collective fails.
    pub fn new(
        model: M,
        optimizer: impl Into<ParameterOptimizer>,
        options: impl Into<ParallelOptions>,
        group: &ProcessGroup,
    ) -> Result<Self, ParallelError> {
        let (optimizer, mut options) = (optimizer.into(), options.into());
        let (description, parameters, optimizer) =
            tell_others(group, Self::prepare(&model, &optimizer, &options, group))?;
        description.agree(group)?;
        if group.rank() == 0 {
            tensor_fields::warn_of(&model);
        }
        let device = device_of(&model);
        let carried_out =
            options.carried_out(&device, optimizer.whole().contains(&true), group.size());
        options = replicas::keep_equal(options, carried_out, &parameters)?;
        let shards = tell_others(group, ShardGroups::of(group, options.shard_within))?;
        let sums = match options.sync_batch_norm && group.size() > 1 {
            true => Some(RankSums::over(group)?),
            false => None,
        };
        let sharded = options.strategy == Strategy::Zero3;
        let which = match sharded {
            true => Which::Buffers,
            false => Which::All,
        };
        let (model, outcome) = replicas::broadcast(model, which, group);
        tell_others(group, outcome)?;
        let keep = options.strategy.gradients();
        let whole = optimizer.whole();
        let shares = match options.virtual_ranks {
            Some(count) => Some(VirtualShares::of(
                group,
                count,
                options.strategy.is_lockstep(),
            )?),
            None => None,
        };
        let (within, sizes) = (&shards.within, options.buckets);
        let partition = match &shares {
            None => Partition::new(within, parameters, &whole, sizes, keep),
            Some(shares) => {
                let among = shares.group().clone();
                Partition::among_virtual_ranks(within, among, parameters, &whole, sizes, keep)
            }
        };
        let partition = partition?
            .replicated(shards.across.clone())
            .of_model(group.next_model())
            .compressed(options.compression);
        let reducer = Arc::new(Reducer::new(shards.store(device, partition)?));
        let (model, store) = match sharded {
            true => Self::shard(model, &options, group, &reducer),
            false => (model, Ok(None)),
        };
        let store = tell_others(group, store)?;
        let (model, ema) = match &store {
            Some(store) => (
                model,
                Ok(options
                    .averaging()
                    .map(|averaging| Ema::new(averaging, store.pieces()))),
            ),
            None => Self::start_ema(model, &options, &reducer),
        };
        let ema = tell_others(group, ema)?;
        let cast = options.precision.cast_to();
        let model = match cast {
            Some(dtype) => statistics::cast(model, dtype),
            None => model,
        };
        let bare = Bare::of(&model);
        let source = store.clone().map(|store| store as Arc<dyn ParameterSource>);
        let hooks = GradHooks::new(reducer.clone(), cast, source);
        let model = model.apply_reparameterization(hooks);
        let loss_scale =
            (options.precision == Precision::F16).then(|| LossScale::new(options.loss_scale));
        let mut parallel = Self {
            model: Some(model),
            bare,
            group: group.clone(),
            shards,
            reducer,
            store,
            optimizer,
            options,
            loss_scale,
            ema,
            sums,
            shares,
            micro_batches: 0,
            weights: Weights::default(),
        };
        parallel.begin_shares()?;
        Ok(parallel)
    }

    /// Checks everything that needs no other rank.
    fn prepare(
        model: &M,
        optimizer: &ParameterOptimizer,
        options: &ParallelOptions,
        group: &ProcessGroup,
    ) -> Result<(Description, Vec<ParameterSpec>, OptimizerState), ParallelError> {
        options.check()?;
        options.shard_within.check(group.size())?;
        one_device(&model.devices())?;
        options.check_devices(&model.devices())?;
        if optimizer.clips_each_parameter {
            return Err(ParallelError::ClipsEachParameter);
        }
        let (description, parameters) = Description::of(model, options, optimizer)?;
        if parameters.is_empty() {
            return Err(ParallelError::NothingToTrain);
        }
        let strategy = options.strategy;
        let (device, offload) = (device_of(model), options.offload_optimizer);
        let optimizer = OptimizerState::new(optimizer, &parameters, device, offload)?;
        if strategy.shards()
            && let Some(spec) = parameters.iter().find(|p| p.dtype != crate::DType::F32)
        {
            return Err(ParallelError::NotSharded {
                path: spec.path.clone(),
                dtype: spec.dtype,
                strategy,
            });
        }
        Ok((description, parameters, optimizer))
    }

    fn start_ema(
        model: M,
        options: &ParallelOptions,
        reducer: &Reducer,
    ) -> (M, Result<Option<Ema>, ParallelError>) {
        let Some(averaging) = options.averaging() else {
            return (model, Ok(None));
        };
        let (model, pieces) = pieces_of(model, reducer.owned(), reducer.device());
        (
            model,
            pieces.map(|pieces| Some(Ema::new(averaging, pieces))),
        )
    }

    /// Takes the parameters out of the model: rank 0's values for all ranks, one set of shards
    /// each.
    fn shard(
        model: M,
        options: &ParallelOptions,
        all: &ProcessGroup,
        reducer: &Arc<Reducer>,
    ) -> (M, Result<Option<Arc<ShardedParameters>>, ParallelError>) {
        let (model, pieces) = take_pieces(model, reducer.owned(), reducer.device(), all);
        let store = |pieces| {
            Arc::new(ShardedParameters::new(
                reducer.clone(),
                options.prefetch,
                pieces,
            ))
        };
        (model, pieces.map(|pieces| Some(store(pieces))))
    }

    /// The model with gradient hooks, for computing a loss.
    ///
    /// Call this again right before every forward pass, on the same thread. If one thread trains
    /// several models, [`sync_batch_norm`](ParallelOptions::sync_batch_norm) follows the last one
    /// taken.
    ///
    /// `field.val()` reads a parameter through its hook, as Burn's layers do. A
    /// [`ModuleVisitor`](burn::module::ModuleVisitor) and a `Deref` (`&*field`) bypass the hook:
    /// [`backward`](Self::backward) refuses a loss that depends on them, and under
    /// [`Strategy::Zero3`] they see no values.
    ///
    /// A clone of this model is not a copy: it shares the hooks, and under ZeRO-3 the current
    /// parameters. Use [`valid`](Self::valid) for a copy that stays as it is (a target network,
    /// weights to save) and for evaluation. To change the model itself (clip or prune weights,
    /// freeze or unfreeze some), save a checkpoint, call [`into_model`](Self::into_model), change
    /// the model, and restore the checkpoint into a new `Parallel`.
    ///
    /// All ranks make the same number of calls. If ranks have different numbers of batches, use
    /// [`join`](Self::join).
    pub fn model(&self) -> &M {
        forget_depth();
        sum_over(self.sums.as_ref());
        self.get()
    }

    /// The type in which the model computes; inputs must have it.
    pub fn compute_dtype(&self) -> FloatDType {
        self.options.precision.compute_dtype()
    }

    /// Copies the buffers of rank 0 to all ranks, so that they evaluate the same model.
    ///
    /// Checkpoints hold rank 0's buffers, and other systems evaluate them too; so they are not
    /// averaged.
    ///
    /// # Errors
    ///
    /// Fails if a collective fails.
    pub fn sync_buffers(&mut self) -> Result<(), ParallelError> {
        let Some(model) = self.model.take() else {
            return Ok(());
        };
        let (model, outcome) = replicas::broadcast(model, Which::Buffers, &self.group);
        self.model = Some(model);
        tell_others(&self.group, outcome)?;
        self.begin_shares()
    }

    /// Checksum of this rank's trainable parameters. A collective call under [`Strategy::Zero3`].
    ///
    /// # Errors
    ///
    /// Fails if the device cannot return a parameter's values.
    pub fn checksum(&self) -> Result<Checksum, ParallelError> {
        match &self.store {
            Some(store) => replicas::checksum_of(store, self.parameters().len()),
            None => replicas::checksum(self.get()),
        }
    }

    /// Compares the checksums of all ranks, which is cheap, and returns the common one.
    ///
    /// # Errors
    ///
    /// Names the ranks whose parameters differ from those of rank 0.
    pub fn verify_replicas(&self) -> Result<Checksum, ParallelError> {
        let own = tell_others(&self.group, self.checksum())?;
        let all = self.group.gather_bytes(&own.0)?;
        let reference = all.first().cloned().unwrap_or_default();
        let ranks: Vec<usize> = (0..all.len())
            .filter(|rank| all[*rank] != reference)
            .collect();
        if ranks.is_empty() {
            Ok(own)
        } else {
            Err(ParallelError::ReplicasDiffer { ranks })
        }
    }

    /// This rank's share of parameters, buffers and optimizer state. Call it between two steps.
    ///
    /// The shares of all ranks together are the whole state, without gradients. If there are
    /// several sets of shards, the first set has the whole state and the shares of the others are
    /// empty. Nothing is copied yet, except on a GPU. Later steps do not change the share.
    ///
    /// # Errors
    ///
    /// Fails in the middle of a step.
    pub fn state(&self) -> Result<StateShare, ParallelError> {
        self.check_between_steps("a state can be saved")?;
        let (rank, size) = (self.shards.within.rank(), self.shards.within.size());
        if !self.shards.is_first() {
            return Ok(StateShare::nothing());
        }
        let ema = self.ema.as_ref();
        let whole = state::Whole {
            parameters: self.parameters(),
            optimizer: &self.optimizer,
            ema,
            owned: self.options.strategy.shards().then(|| self.reducer.owned()),
            pieces: self.store.as_ref().map(|store| store.pieces()),
        };
        let mut share = state::share(self.get(), &whole, rank, size);
        if let Some(loss_scale) = self.loss_scale.as_ref().filter(|_| rank == 0) {
            share.add_scalars(LOSS_SCALE, loss_scale.scalars());
        }
        if rank == 0 {
            share.add_scalars(weighted::NAME, self.weights.scalars());
        }
        if let Some(ema) = ema.filter(|_| rank == 0) {
            share.add_scalars(ema::NAME, ema.scalars());
        }
        Ok(match self.get().devices().iter().all(backend::is_host) {
            true => share,
            false => share.settle(),
        })
    }

    /// Continues from the shares that [`state`](Self::state) returned, with any number of ranks.
    ///
    /// A collective call between two steps. Afterwards all ranks have the same parameters.
    ///
    /// The state may come from another precision: parameters are `f32` in all of them. Without a
    /// loss scale in the state, scaling starts at the initial scale; without averages of the
    /// parameters, they start at the parameters.
    ///
    /// # Errors
    ///
    /// - The state does not fit the model or the optimizer. This `Parallel` is then unusable.
    /// - The call is in the middle of a step. The other ranks get this error too.
    /// - Ranks restored different states. [`Strategy::Zero3`] does not detect this, because each
    ///   rank has other parameters anyway.
    pub fn restore(&mut self, source: &dyn StateSourceRead) -> Result<(), ParallelError> {
        // Gradients of the old parameters would count as gradients of the new ones.
        let between = self.check_between_steps("a state can be restored");
        let outcome = between.and_then(|()| self.restore_own(source));
        tell_others(&self.group, outcome)?;
        match self.verify_replicas() {
            Ok(_) => self.begin_shares(),
            Err(ParallelError::ReplicasDiffer { ranks }) => {
                Err(ParallelError::RestoredDiffer { ranks })
            }
            Err(error) => Err(error),
        }
    }

    fn restore_own(&mut self, source: &dyn StateSourceRead) -> Result<(), ParallelError> {
        let Some(model) = self.model.take() else {
            return Ok(());
        };
        let (model, outcome) = state::restore_model(model, source, self.store.is_some());
        self.model = Some(model);
        outcome?;
        let own = (self.reducer.parameters(), self.reducer.owned());
        let device = self.reducer.device();
        if let Some(store) = &self.store {
            let pieces = state::restore_pieces(own, device, source)?;
            store.update(|own| own.clone_from_slice(&pieces));
        }
        if let Some(loss_scale) = &mut self.loss_scale {
            let scalars = state::scalars(source, LOSS_SCALE);
            loss_scale
                .restore(scalars)
                .map_err(|reason| ParallelError::restore(LOSS_SCALE, reason))?;
        }
        self.weights
            .restore(&state::scalars(source, weighted::NAME));
        if let Some(ema) = &mut self.ema
            && !ema.restore(own, device, source)?
        {
            let values = match (&self.store, self.model.take()) {
                (Some(store), model) => {
                    self.model = model;
                    store.pieces()
                }
                (None, Some(model)) => {
                    let (model, pieces) = pieces_of(model, own.1, device);
                    self.model = Some(model);
                    pieces?
                }
                (None, None) => Vec::new(),
            };
            ema.start_at(values);
        }
        let (optimizer, cut) = (&mut self.optimizer, self.options.strategy.shards());
        state::restore_optimizer(own, optimizer, source, cut)
    }

    /// Sets the number of steps of the training so far.
    ///
    /// It decides when the mean of [`swa`](ParallelOptions::swa) begins. Call it after
    /// [`restore`](Self::restore): a saved state without averages does not know it.
    pub fn set_steps(&mut self, steps: u64) {
        if let Some(ema) = &mut self.ema {
            ema.set_steps(steps);
        }
    }

    /// Changes the number of micro-batches in later steps. Every rank calls it with the same
    /// number.
    ///
    /// # Errors
    ///
    /// Fails for 0, in the middle of a step, or if ranks pass different numbers.
    pub fn set_accumulate(&mut self, accumulate: usize) -> Result<(), ParallelError> {
        self.agree(&format!("accumulate = {accumulate}"))?;
        // All ranks refuse alike.
        options::check_accumulate(accumulate)?;
        self.check_between_steps("accumulate can be changed")?;
        self.options.accumulate = accumulate;
        Ok(())
    }

    /// Drops the gradients of the micro-batches of the current step.
    ///
    /// For the end of data that has too few micro-batches for a step;
    /// [`step_early`](Self::step_early) uses them instead. Every rank makes this call, after the
    /// same number of micro-batches.
    ///
    /// # Errors
    ///
    /// Fails if ranks have done different numbers of micro-batches, or if a collective fails.
    pub fn discard(&mut self) -> Result<(), ParallelError> {
        self.agree("discard")?;
        self.reducer.discard()?;
        self.discard_shares();
        self.end_step();
        Ok(())
    }

    /// Fails on all ranks unless all say the same after the same number of micro-batches.
    fn agree(&self, what: &str) -> Result<(), ParallelError> {
        // Ranks may have different numbers of virtual ranks.
        let done = match &self.shares {
            Some(_) if self.micro_batches == self.micro_batches() => "all".to_owned(),
            _ => self.micro_batches.to_string(),
        };
        let own = format!("{what} after {done} micro-batches");
        let all = self.group.gather_bytes(own.as_bytes())?;
        let Some(other) = all.iter().position(|said| *said != all[0]) else {
            return Ok(());
        };
        let said = |rank: usize| String::from_utf8_lossy(&all[rank]).into_owned();
        Err(ParallelError::CallsDiffer {
            first_rank: 0,
            second_rank: other,
            first: said(0),
            second: said(other),
        })
    }

    fn check_between_steps(&self, what: &'static str) -> Result<(), ParallelError> {
        match self.micro_batches {
            0 => Ok(()),
            done => Err(ParallelError::WithinStep {
                what,
                done,
                accumulate: self.micro_batches(),
            }),
        }
    }

    /// The options in force.
    pub fn options(&self) -> &ParallelOptions {
        &self.options
    }

    /// The ranks that train this model.
    pub fn group(&self) -> &ProcessGroup {
        &self.group
    }

    /// The ranks that together hold the state once.
    ///
    /// These are all ranks, or this rank's set if there are several
    /// ([`ParallelOptions::shard_within`]).
    pub fn shard_group(&self) -> &ProcessGroup {
        &self.shards.within
    }

    /// The ranks that hold the same shard in the other sets; `None` with a single set.
    pub fn replica_group(&self) -> Option<&ProcessGroup> {
        self.shards.across.as_ref()
    }

    /// The trainable parameters in visit order.
    pub fn parameters(&self) -> &[ParameterSpec] {
        self.reducer.parameters()
    }

    /// Number of trainable elements.
    pub fn num_parameters(&self) -> usize {
        self.parameters()
            .iter()
            .map(ParameterSpec::num_elements)
            .sum()
    }

    fn get(&self) -> &M {
        self.model
            .as_ref()
            .expect("the model is absent only while `step` or `sync_buffers` replaces it")
    }
}

/// Refuses a device without our hooks and kernels, and a model on several devices.
fn one_device(devices: &[Device]) -> Result<(), ParallelError> {
    let mut inner: Vec<Device> = Vec::new();
    for device in devices {
        let device = device.clone().inner();
        if !inner.contains(&device) {
            inner.push(device);
        }
    }
    if let Some(device) = inner.iter().find(|device| !backend::is_built_for(device)) {
        return Err(ParallelError::NotBuiltFor {
            device: format!("{device:?}"),
        });
    }
    match inner.len() {
        0 | 1 => Ok(()),
        _ => Err(ParallelError::SeveralDevices {
            devices: inner.iter().map(|device| format!("{device:?}")).collect(),
        }),
    }
}

/// The device of a model's parameters, without autodiff.
fn device_of<M: Module>(model: &M) -> Device {
    let device = model.devices().into_iter().next();
    device.map_or_else(Device::flex, Device::inner)
}

/// Prefix of the loss scale in a saved state.
const LOSS_SCALE: &str = "loss_scale";

/// Tells the other ranks of an error that perhaps only this rank has seen. They would wait for it.
fn tell_others<T>(
    group: &ProcessGroup,
    outcome: Result<T, ParallelError>,
) -> Result<T, ParallelError> {
    outcome.inspect_err(|error| {
        use crate::Error::{Device, WrongType};
        let seen_by_all = match error {
            // These two do not come from a collective.
            ParallelError::Group(Device { .. } | WrongType(_)) => false,
            ParallelError::Group(_) | ParallelError::UnevenNodes { .. } => true,
            _ => false,
        };
        if group.size() > 1 && !seen_by_all {
            group.abort(&error.to_string());
        }
    })
}
