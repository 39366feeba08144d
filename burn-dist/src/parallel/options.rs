//! Options of parallel training.

use std::fmt;
use std::num::NonZeroUsize;
use std::str::FromStr;

use burn::tensor::{DType, Device};

use super::ema::Averaging;
use super::{EmaOptions, ParallelError, SwaOptions};
use crate::Compression;
use crate::backend::{self, is_host};
use crate::bucket::{BucketSizes, KeptGradients};
use crate::named::named;
use crate::precision::{LossScaleOptions, Precision};

/// Division of the training state among ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum Strategy {
    /// Distributed data parallel: every rank holds the whole model and the whole optimizer state.
    ///
    /// Gradients are averaged. An optimizer that needs whole parameters may give different bits on
    /// each rank on CUDA or with the feature `autotune`; then the step runs as in stage 1. For the
    /// same reason, on a CPU this optimizer steps parameters of 4 Mi elements and more on one
    /// thread.
    #[default]
    Ddp,
    /// ZeRO stage 1: every rank holds the whole model, all gradients and a shard of optimizer
    /// state.
    ///
    /// With `f32` and AdamW that is 8 + 8/N bytes per parameter on N ranks.
    Zero1,
    /// ZeRO stage 2: as stage 1, but every rank keeps a shard of the gradients: 4 + 12/N bytes.
    ///
    /// Every micro-batch communicates.
    Zero2,
    /// ZeRO stage 3: as stage 2, but every rank keeps a shard of the parameters too: 16/N bytes.
    ///
    /// Parameters are gathered when a layer reads them, in forward and again in backward. So all
    /// ranks must read the same parameters in the same order.
    ///
    /// A layer that is read repeatedly, such as a recurrent layer at every time step, is gathered
    /// each time, unless it is among the last [`prefetch`](ParallelOptions::prefetch) + 2 buckets.
    /// Read its parameters once and use them at every step, or let `prefetch` cover it.
    ///
    /// Create the model on `device.autodiff().gradient_checkpointing()`. Otherwise Burn's linear
    /// layers keep their weights alive until backward if the input has more than two dimensions.
    ///
    /// If no backward follows a forward pass, all ranks must drop its graph at the same place, or
    /// all keep it. A bucket of gradients is sent as soon as no graph uses its parameters. A rank
    /// that keeps a graph alive sends later, between other gathers than the other ranks, which then
    /// fail with an error.
    Zero3,
}

impl Strategy {
    /// Whether the optimizer's state is sharded.
    pub const fn shards(self) -> bool {
        !matches!(self, Self::Ddp)
    }

    /// Whether all ranks must run the same number of forward passes.
    pub const fn is_lockstep(self) -> bool {
        matches!(self, Self::Zero3)
    }

    /// The gradients that each rank keeps.
    pub(super) const fn gradients(self) -> KeptGradients {
        match self {
            Self::Ddp => KeptGradients::Whole,
            Self::Zero1 => KeptGradients::Scattered,
            Self::Zero2 | Self::Zero3 => KeptGradients::Sharded,
        }
    }
}

named! {
    Strategy { Ddp = "ddp", Zero1 = "zero-1", Zero2 = "zero-2", Zero3 = "zero-3", }
    parsed as "strategy"
}

/// The ranks over which a strategy shards.
///
/// Several sets of shards are replicas of each other. Gradients are reduced inside each set, then
/// each shard over the sets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum ShardWithin {
    /// All ranks share one set of shards.
    #[default]
    All,
    /// The ranks of each node share a set. All nodes have the same number of ranks.
    Node,
    /// This many consecutive ranks share a set. The number divides the world size.
    Ranks(NonZeroUsize),
}

impl ShardWithin {
    /// Number of ranks in a set, for `world_size` ranks on `nodes` nodes.
    pub fn ranks(self, world_size: usize, nodes: usize) -> usize {
        match self {
            Self::All => world_size,
            Self::Node => (world_size / nodes.max(1)).max(1),
            Self::Ranks(ranks) => ranks.get(),
        }
    }

    /// Checks that `world_size` ranks can be divided; only the ranks know about nodes.
    ///
    /// # Errors
    ///
    /// Fails if the number does not divide `world_size`.
    pub fn check(self, world_size: usize) -> Result<(), ParallelError> {
        match self {
            Self::Ranks(ranks) if !world_size.is_multiple_of(ranks.get()) => {
                Err(ParallelError::ShardWithin { ranks, world_size })
            }
            _ => Ok(()),
        }
    }
}

impl fmt::Display for ShardWithin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::All => f.write_str("all"),
            Self::Node => f.write_str("node"),
            Self::Ranks(ranks) => ranks.fmt(f),
        }
    }
}

impl FromStr for ShardWithin {
    type Err = UnknownRanks;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text {
            "all" => Ok(Self::All),
            "node" => Ok(Self::Node),
            other => other.parse().map(Self::Ranks).map_err(|_| UnknownRanks {
                text: other.to_owned(),
            }),
        }
    }
}

/// A text that names no set of ranks.
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
#[error("shard_within is `{text}`; it must be `all`, `node` or a number of ranks")]
pub struct UnknownRanks {
    /// The text.
    pub text: String,
}

crate::debug_is_display!(UnknownRanks);

/// Options of [`Parallel`](super::Parallel), the same on every rank.
#[derive(Clone, Debug, PartialEq)]
pub struct ParallelOptions {
    /// Division of the training state among ranks.
    pub strategy: Strategy,
    /// The ranks over which the strategy shards.
    pub shard_within: ShardWithin,
    /// Micro-batches in a step (gradient accumulation).
    ///
    /// In [`Strategy::Ddp`] and [`Strategy::Zero1`] gradients travel with the last micro-batch
    /// only. In the other stages no rank keeps all gradients, so they travel with every
    /// micro-batch.
    pub accumulate: usize,
    /// Number of virtual ranks, the shares of every global batch; `None` for one share per rank.
    ///
    /// A virtual rank has `accumulate` micro-batches in a step, and a rank computes one or several
    /// virtual ranks: see [`next_share`](super::Parallel::next_share). Gradients, norms, weights
    /// and running statistics (buffers whose names begin with `running_`) are added in one order,
    /// whatever the ranks. So 1 to `virtual_ranks` ranks give the same bits under every strategy,
    /// and a training can go on from a state with another number of ranks.
    ///
    /// All gradients stay on each rank until the end of a step, also in [`Strategy::Zero2`] and
    /// [`Strategy::Zero3`], as often as sums are open ([`VirtualRanks::most_sums`]). Only on a CPU;
    /// not with `shard_within`, `sync_batch_norm` or `compression`. Source: Or et al. 2022,
    /// "VirtualFlow", <https://arxiv.org/abs/2009.09523>.
    ///
    /// [`VirtualRanks::most_sums`]: crate::VirtualRanks::most_sums
    pub virtual_ranks: Option<usize>,
    /// Largest Euclidean norm of all gradients together; larger gradients are scaled down to it.
    ///
    /// Infinity measures the norm and never clips.
    pub clip_norm: Option<f64>,
    /// Sizes of the buckets that carry gradients and sharded parameters.
    pub buckets: BucketSizes,
    /// Number format in which `f32` gradients travel over TCP, MPI and NCCL.
    ///
    /// Shared memory is not affected: gradients do not travel there.
    pub compression: Compression,
    /// Keeps the optimizer state of a model on a GPU in host memory, where the CPU makes the step.
    ///
    /// With AdamW this saves 8 bytes per parameter (or per element of this rank's shard) on the
    /// GPU, and moves 12 bytes over the bus in every step. No effect on a CPU. Source: Ren et al.
    /// 2021, "ZeRO-Offload", <https://arxiv.org/abs/2101.06840>.
    pub offload_optimizer: bool,
    /// Uses the global batch's statistics in batch normalizations, as PyTorch's `SyncBatchNorm`.
    ///
    /// For micro-batches too small for good statistics. It enables sums [over all
    /// ranks](crate::autograd::sum_over_ranks), which the layers of the crate `models` call. Burn's
    /// own layers do not.
    pub sync_batch_norm: bool,
    /// Buckets of parameters to gather ahead of use in [`Strategy::Zero3`].
    pub prefetch: usize,
    /// Number format of forward and backward.
    pub precision: Precision,
    /// Options of the loss scale in [`Precision::F16`]; no effect in other precisions.
    pub loss_scale: LossScaleOptions,
    /// Moving average of the parameters; `None` keeps none.
    pub ema: Option<EmaOptions>,
    /// Mean of the parameters in the last part of the training, instead of a moving average; `None`
    /// keeps none.
    pub swa: Option<SwaOptions>,
}

impl Default for ParallelOptions {
    /// DDP, no accumulation, no clipping, buckets of 8 MiB (the first 1 MiB), `f32`.
    fn default() -> Self {
        Self {
            strategy: Strategy::default(),
            shard_within: ShardWithin::default(),
            accumulate: 1,
            virtual_ranks: None,
            clip_norm: None,
            buckets: BucketSizes::default(),
            compression: Compression::None,
            offload_optimizer: false,
            sync_batch_norm: false,
            prefetch: 1,
            precision: Precision::default(),
            loss_scale: LossScaleOptions::default(),
            ema: None,
            swa: None,
        }
    }
}

impl From<Strategy> for ParallelOptions {
    fn from(strategy: Strategy) -> Self {
        Self {
            strategy,
            ..Self::default()
        }
    }
}

impl ParallelOptions {
    /// Returns the options that keep the replicas of `ranks` ranks on `device` bitwise equal.
    ///
    /// A step that sees whole parameters (`whole`) contains sums. Burn's sums on CUDA use atomic
    /// additions in any order, and with the feature `autotune` ranks may even pick different
    /// kernels. In that case one rank steps each parameter for all, as in ZeRO stage 1 with one set
    /// of shards; this sends as much as averaging gradients. On a CPU sums have the same order
    /// everywhere, so nothing changes.
    pub fn carried_out(&self, device: &Device, whole: bool, ranks: usize) -> Self {
        let by_processor = is_host(device) || self.offload_optimizer;
        let varies = backend::AUTOTUNES || backend::kind(device) == "cuda";
        if ranks == 1 || !whole || by_processor || !varies {
            return self.clone();
        }
        Self {
            strategy: match self.strategy {
                Strategy::Ddp => Strategy::Zero1,
                other => other,
            },
            shard_within: ShardWithin::All,
            ..self.clone()
        }
    }

    pub(super) fn check(&self) -> Result<(), ParallelError> {
        check_accumulate(self.accumulate)?;
        if !self.strategy.shards() && self.shard_within != ShardWithin::All {
            return Err(ParallelError::Option {
                option: "shard_within",
                value: self.shard_within.to_string(),
                expected: "`all` with ddp, which shards nothing. Leave it out, or use zero-1, \
                           zero-2 or zero-3",
            });
        }
        if self.virtual_ranks.is_some() {
            self.check_beside_virtual_ranks()?;
        }
        if let Some(ema) = &self.ema {
            ema.check()?;
        }
        if let Some(swa) = &self.swa {
            swa.check()?;
        }
        if self.ema.is_some() && self.swa.is_some() {
            return Err(ParallelError::Option {
                option: "swa",
                value: "set".to_owned(),
                expected: "left out with ema: a model has one average",
            });
        }
        self.loss_scale
            .check()
            .map_err(|(option, value, expected)| ParallelError::Option {
                option,
                value: value.to_string(),
                expected,
            })?;
        match self.clip_norm {
            Some(norm) if norm.is_nan() || norm <= 0.0 => Err(ParallelError::Option {
                option: "clip_norm",
                value: norm.to_string(),
                expected: "above 0",
            }),
            _ => Ok(()),
        }
    }

    fn check_beside_virtual_ranks(&self) -> Result<(), ParallelError> {
        let refused = |option, value: String, expected| {
            Err(ParallelError::Option {
                option,
                value,
                expected,
            })
        };
        if self.shard_within != ShardWithin::All {
            let expected =
                "`all` with virtual_ranks, whose gradients have one order over all ranks";
            return refused("shard_within", self.shard_within.to_string(), expected);
        }
        if self.sync_batch_norm {
            let expected = "off with virtual_ranks: each virtual rank has its own batch statistics";
            return refused("sync_batch_norm", "on".to_owned(), expected);
        }
        if self.compression != Compression::None {
            let expected = "`none` with virtual_ranks: rounding would depend on the ranks";
            return refused("compression", self.compression.to_string(), expected);
        }
        Ok(())
    }

    /// Checks that all devices can compute in this precision and in the format of the gradients.
    pub(super) fn check_devices(&self, devices: &[Device]) -> Result<(), ParallelError> {
        self.check_compression(devices)?;
        if let Some(device) = devices.iter().find(|device| !is_host(device))
            && self.virtual_ranks.is_some()
        {
            return Err(ParallelError::Option {
                option: "the device",
                value: format!("{device:?}"),
                expected: "the CPU with virtual_ranks: sums on other devices have no fixed order",
            });
        }
        let supports = |device: &Device, precision: Precision| {
            device.supports_dtype(DType::from(precision.compute_dtype()))
        };
        match devices
            .iter()
            .find(|device| !supports(device, self.precision))
        {
            None => Ok(()),
            Some(device) => Err(ParallelError::Precision {
                precision: self.precision,
                device: format!("{device:?}"),
                supported: Precision::ALL
                    .into_iter()
                    .filter(|precision| supports(device, *precision))
                    .collect(),
            }),
        }
    }

    /// Checks CUDA devices only: for other devices the CPU compresses on the way.
    fn check_compression(&self, devices: &[Device]) -> Result<(), ParallelError> {
        let wire = match self.compression {
            Compression::None => return Ok(()),
            Compression::Bf16 => DType::BF16,
            Compression::F16 => DType::F16,
        };
        let lacks =
            |device: &&Device| backend::kind(device) == "cuda" && !device.supports_dtype(wire);
        match devices.iter().find(lacks) {
            None => Ok(()),
            Some(device) => Err(ParallelError::Option {
                option: "compression",
                value: format!("{} on {device:?}", self.compression),
                expected: "a number format of the device",
            }),
        }
    }

    fn describe_precision(&self) -> String {
        let precision = match self.precision {
            Precision::F16 => format!("f16 with {:?}", self.loss_scale),
            other => other.to_string(),
        };
        match self.averaging() {
            Some(averaging) => format!("{precision}, {averaging:?}"),
            None => precision,
        }
    }

    /// The way in which parameters are averaged, if they are.
    pub(super) fn averaging(&self) -> Option<Averaging> {
        let mean = self.swa.map(Averaging::Mean);
        self.ema.map(Averaging::Exponential).or(mean)
    }

    /// The options in one line, for comparison between ranks.
    pub(super) fn describe(&self) -> String {
        format!(
            "strategy {} within {}, virtual_ranks {}, accumulate {}, clip_norm {}, buckets of {} and {} bytes, \
             compression {}, offload_optimizer {}, sync_batch_norm {}, prefetch {}, {}",
            self.strategy,
            self.shard_within,
            self.virtual_ranks
                .map_or_else(|| "off".to_owned(), |count| count.to_string()),
            self.accumulate,
            self.clip_norm
                .map_or_else(|| "off".to_owned(), |norm| norm.to_string()),
            self.buckets.first,
            self.buckets.others,
            self.compression,
            self.offload_optimizer,
            self.sync_batch_norm,
            self.prefetch,
            self.describe_precision(),
        )
    }
}

pub(super) fn check_accumulate(accumulate: usize) -> Result<(), ParallelError> {
    if accumulate > 0 {
        return Ok(());
    }
    Err(ParallelError::Option {
        option: "accumulate",
        value: accumulate.to_string(),
        expected: "at least 1",
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strategies_are_known_by_name() {
        for strategy in Strategy::ALL {
            assert_eq!(strategy.to_string().parse(), Ok(strategy));
        }
        let error = "dpp".parse::<Strategy>().unwrap_err();
        let error = error.to_string();
        assert_eq!(
            error,
            "unknown strategy `dpp`; choose one of ddp, zero-1, zero-2, zero-3"
        );
    }

    #[test]
    fn ranks_to_shard_over_are_read_and_checked() {
        for text in ["all", "node", "4"] {
            assert_eq!(text.parse::<ShardWithin>().unwrap().to_string(), text);
        }
        for text in ["", "0", "-1", "host"] {
            assert!(text.parse::<ShardWithin>().is_err(), "{text}");
        }
        let four: ShardWithin = "4".parse().unwrap();
        assert!(four.check(8).is_ok());
        let error = four.check(6).unwrap_err().to_string();
        assert!(
            error.contains("4 ranks") && error.contains("world size is 6"),
            "{error}"
        );
        assert_eq!([four.ranks(8, 4), ShardWithin::Node.ranks(8, 4)], [4, 2]);
        let plain = ParallelOptions {
            shard_within: ShardWithin::Node,
            ..ParallelOptions::default()
        };
        let error = plain.check().unwrap_err().to_string();
        assert!(error.contains("ddp, which shards nothing"), "{error}");
    }

    #[test]
    fn options_without_meaning_are_refused() {
        for clip_norm in [0.0, -1.0, f64::NAN] {
            let options = ParallelOptions {
                clip_norm: Some(clip_norm),
                ..ParallelOptions::default()
            };
            assert!(options.check().is_err());
        }
        let options = ParallelOptions {
            accumulate: 0,
            ..ParallelOptions::default()
        };
        let error = options.check().unwrap_err().to_string();
        assert_eq!(error, "accumulate is 0, but must be at least 1");
    }
}
