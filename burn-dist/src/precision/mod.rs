//! Mixed precision: the number format of a model's arithmetic, and the loss scale that keeps small
//! gradients representable in half precision.
//!
//! Parameters stay in `f32` (the master weights). Layers read them cast, and gradients come back in
//! `f32`. See Micikevicius et al. 2018, <https://arxiv.org/abs/1710.03740>.

mod loss_scale;

use burn::tensor::FloatDType;

use crate::named::named;
pub use loss_scale::{LossScale, LossScaleError, LossScaleOptions};

/// Number format of forward and backward.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Precision {
    /// IEEE single precision, or the type of the parameters.
    #[default]
    F32,
    /// bfloat16, with `f32` master weights.
    Bf16,
    /// IEEE half precision, with `f32` master weights and a loss scale.
    F16,
}

impl Precision {
    /// The type of inputs and activations.
    pub const fn compute_dtype(self) -> FloatDType {
        match self {
            Self::F32 => FloatDType::F32,
            Self::Bf16 => FloatDType::BF16,
            Self::F16 => FloatDType::F16,
        }
    }

    /// The type that `f32` parameters are cast to; `None` without a cast.
    pub(crate) fn cast_to(self) -> Option<FloatDType> {
        (self != Self::F32).then(|| self.compute_dtype())
    }
}

named! {
    Precision { F32 = "f32", Bf16 = "bf16", F16 = "f16", }
    parsed as "precision"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn precisions_are_known_by_name() {
        for precision in Precision::ALL {
            assert_eq!(precision.to_string().parse(), Ok(precision));
        }
        let error = "fp8".parse::<Precision>().unwrap_err().to_string();
        assert_eq!(
            error,
            "unknown precision `fp8`; choose one of f32, bf16, f16"
        );
    }
}
