//! How a model is trained in parallel.

use std::fmt;
use std::str::FromStr;

use burn::tensor::{DType, Device};

use super::{EmaOptions, ParallelError};
use crate::bucket::{BucketSizes, Gradients};
use crate::precision::{LossScaleOptions, Precision};

/// What the ranks share and what each of them keeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum Strategy {
    /// Distributed data parallel: every rank holds the whole model and all of the optimizer's
    /// state, gradients are averaged.
    #[default]
    Ddp,
    /// ZeRO stage 1: every rank holds the whole model and all gradients, and its shard of the
    /// optimizer's state. With `f32` and AdamW 8 + 8/N bytes per parameter on N ranks.
    Zero1,
    /// ZeRO stage 2: as stage 1, but of the gradients every rank keeps its shard: 4 + 12/N bytes.
    /// Every micro-batch communicates.
    Zero2,
    /// ZeRO stage 3: as stage 2, but of the parameters, too, every rank keeps its shard: 16/N
    /// bytes. They are gathered when a layer reads them, in forward and again in backward, so all
    /// ranks have to read the same parameters in the same order.
    ///
    /// Make the model on `device.autodiff().gradient_checkpointing()`: otherwise Burn's linear
    /// layers, where their input has more than two dimensions, keep a view of their weights for
    /// backward, and with it the weights.
    Zero3,
}

impl Strategy {
    /// All strategies.
    pub const ALL: [Self; 4] = [Self::Ddp, Self::Zero1, Self::Zero2, Self::Zero3];

    /// The name used in configurations.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Ddp => "ddp",
            Self::Zero1 => "zero-1",
            Self::Zero2 => "zero-2",
            Self::Zero3 => "zero-3",
        }
    }

    /// Whether the optimizer's state is sharded.
    pub const fn shards(self) -> bool {
        !matches!(self, Self::Ddp)
    }

    /// What each rank keeps of the gradients.
    pub(super) const fn gradients(self) -> Gradients {
        match self {
            Self::Ddp => Gradients::Whole,
            Self::Zero1 => Gradients::Scattered,
            Self::Zero2 | Self::Zero3 => Gradients::Sharded,
        }
    }
}

impl fmt::Display for Strategy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Strategy {
    type Err = UnknownStrategy;

    fn from_str(name: &str) -> Result<Self, Self::Err> {
        Self::ALL
            .into_iter()
            .find(|strategy| strategy.name() == name)
            .ok_or_else(|| UnknownStrategy {
                name: name.to_owned(),
            })
    }
}

/// The name of no strategy.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("unknown strategy `{name}`; known: {}", Strategy::ALL.map(Strategy::name).join(", "))]
pub struct UnknownStrategy {
    /// The name.
    pub name: String,
}

/// Options of [`Parallel`](super::Parallel), the same on every rank.
#[derive(Clone, Debug, PartialEq)]
pub struct ParallelOptions {
    /// What the ranks share.
    pub strategy: Strategy,
    /// Micro-batches of a step. Gradients travel with the last one only.
    pub accumulate: usize,
    /// Largest Euclidean norm of all gradients together; larger ones are scaled down to it.
    /// Infinity measures the norm and never clips.
    pub clip_norm: Option<f64>,
    /// Sizes of the buckets in which gradients travel, and parameters where they are sharded.
    pub buckets: BucketSizes,
    /// Buckets of parameters that are gathered ahead of use in [`Strategy::Zero3`].
    pub prefetch: usize,
    /// The number format of forward and backward.
    pub precision: Precision,
    /// How the loss scale of [`Precision::F16`] changes; of no effect in the others.
    pub loss_scale: LossScaleOptions,
    /// Whether an average of the parameters over the steps is kept.
    pub ema: Option<EmaOptions>,
}

impl Default for ParallelOptions {
    /// DDP, no accumulation, no clipping, buckets of 8 MiB (the first 1 MiB), `f32`.
    fn default() -> Self {
        Self {
            strategy: Strategy::default(),
            accumulate: 1,
            clip_norm: None,
            buckets: BucketSizes::default(),
            prefetch: 1,
            precision: Precision::default(),
            loss_scale: LossScaleOptions::default(),
            ema: None,
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
    pub(super) fn check(&self) -> Result<(), ParallelError> {
        check_accumulate(self.accumulate)?;
        if let Some(ema) = &self.ema {
            ema.check()?;
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

    /// Whether all devices can compute in the precision that is wanted.
    pub(super) fn check_devices(&self, devices: &[Device]) -> Result<(), ParallelError> {
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

    fn describe_precision(&self) -> String {
        let precision = match self.precision {
            Precision::F16 => format!("f16 with {:?}", self.loss_scale),
            other => other.to_string(),
        };
        match self.ema {
            Some(ema) => format!("{precision}, {ema:?}"),
            None => precision,
        }
    }

    /// The options in one line, to compare them between ranks.
    pub(super) fn describe(&self) -> String {
        format!(
            "strategy {}, accumulate {}, clip_norm {}, buckets of {} and {} bytes, prefetch {}, {}",
            self.strategy,
            self.accumulate,
            self.clip_norm
                .map_or_else(|| "off".to_owned(), |norm| norm.to_string()),
            self.buckets.first,
            self.buckets.others,
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
            "unknown strategy `dpp`; known: ddp, zero-1, zero-2, zero-3"
        );
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
        assert_eq!(error, "accumulate is 0, it must be at least 1");
    }
}
