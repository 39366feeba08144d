//! The state of Burn's optimizers in double precision.
//!
//! Burn rebuilds saved state in the default type of new tensors, `f32`. State of `f64` parameters
//! would lose digits and the next step would mix types. So their state is rebuilt here.

use burn::optim::momentum::MomentumState;
use burn::optim::{
    AdaGrad, AdaGradState, Adafactor, AdafactorState, Adam, AdamState, AdamW, AdamWState, Adan,
    AdanState, AdaptiveMomentumState, AdaptiveNesterovMomentumState, CenteredState, DynState, Lamb,
    LambState, Lion, LionState, LrDecayState, Muon, MuonState, Optimizer, RmsProp,
    RmsPropMomentumState, RmsPropState, Sgd, SgdState, SquareAvgState, StateSource,
};
use burn::tensor::{DType, Device, Tensor};

/// Rebuilds the state of a parameter with this number of dimensions from the values under a prefix.
pub(in crate::parallel) type Rebuild =
    fn(usize, &str, &mut StateSource, &Device) -> Option<DynState>;

/// An optimizer whose state is rebuilt here.
pub(in crate::parallel) trait InDouble: Optimizer {
    /// Reads the state; `None` if something is missing.
    fn state<const D: usize>(from: &mut From<'_>) -> Option<Self::State<D>>;
}

/// Source of a state.
pub(in crate::parallel) struct From<'a> {
    prefix: &'a str,
    source: &'a mut StateSource,
    device: &'a Device,
}

impl From<'_> {
    fn tensor<const D: usize>(&mut self, leaf: &str) -> Option<Tensor<D>> {
        let data = self.source.take_tensor(self.prefix, leaf)?;
        Some(Tensor::from_data(data, (self.device, DType::F64)))
    }

    fn number(&mut self, leaf: &str) -> Option<usize> {
        let number = self.source.take_scalar(self.prefix, leaf)?;
        number.try_into().ok()
    }
}

/// The [`Rebuild`] of an optimizer.
pub(in crate::parallel) fn rebuild<O: InDouble>(
    dimensions: usize,
    prefix: &str,
    source: &mut StateSource,
    device: &Device,
) -> Option<DynState> {
    let from = &mut From {
        prefix,
        source,
        device,
    };
    macro_rules! by_dimensions {
        ($($dimensions:literal)*) => {
            match dimensions {
                $($dimensions => {
                    Some(DynState::create(O::state::<$dimensions>(from)?, dimensions))
                })*
                // Burn's tensors have no more dimensions.
                _ => None,
            }
        };
    }
    by_dimensions!(0 1 2 3 4 5 6 7 8)
}

macro_rules! in_double {
    ($($optimizer:ty, $from:ident => $state:expr;)*) => {
        $(impl InDouble for $optimizer {
            fn state<const D: usize>($from: &mut From<'_>) -> Option<Self::State<D>> {
                Some($state)
            }
        })*
    };
}
in_double! {
    AdaGrad, from => AdaGradState::new(LrDecayState::new(
        from.number("lr_decay.time")?,
        from.tensor("lr_decay.sum")?,
    ));
    Adafactor, from => AdafactorState {
        time: from.number("time")?,
        second_moment: from.tensor("second_moment")?,
        column_second_moment: from.tensor("column_second_moment"),
    };
    Adam, from => AdamState::new(adaptive_momentum(from)?);
    AdamW, from => AdamWState::new(adaptive_momentum(from)?);
    Adan, from => AdanState::new(AdaptiveNesterovMomentumState {
        time: from.number("momentum.time")?,
        exp_avg: from.tensor("momentum.exp_avg")?,
        exp_avg_sq: from.tensor("momentum.exp_avg_sq")?,
        exp_avg_diff: from.tensor("momentum.exp_avg_diff")?,
        neg_pre_grad: from.tensor("momentum.neg_pre_grad")?,
    });
    Lamb, from => LambState {
        time: from.number("time")?,
        moment_1: from.tensor("moment_1")?,
        moment_2: from.tensor("moment_2")?,
    };
    Lion, from => LionState::new(from.tensor("momentum")?);
    Muon, from => MuonState::new(MomentumState::new(from.tensor("momentum.velocity")?));
    RmsProp, from => RmsPropState {
        square_avg: SquareAvgState::new(from.tensor("square_avg.square_avg")?),
        centered: CenteredState {
            grad_avg: from.tensor("centered.grad_avg"),
            avg: from.tensor("centered.avg")?,
        },
        momentum: from.tensor("momentum.buf").map(RmsPropMomentumState::new),
    };
    Sgd, from => SgdState::new(from.tensor("momentum.velocity").map(MomentumState::new));
}

fn adaptive_momentum<const D: usize>(from: &mut From<'_>) -> Option<AdaptiveMomentumState<D>> {
    Some(AdaptiveMomentumState {
        time: from.number("momentum.time")?,
        moment_1: from.tensor("momentum.moment_1")?,
        moment_2: from.tensor("momentum.moment_2")?,
        max_moment_2: from.tensor("momentum.max_moment_2"),
    })
}
