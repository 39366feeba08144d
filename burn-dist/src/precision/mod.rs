//! Mixed precision: in which number format a model computes, and the loss scale that lets half
//! precision hold small gradients.
//!
//! Parameters stay in `f32` (the master weights); what reads them sees them cast, and their
//! gradients come back in `f32`. See Micikevicius et al. 2018, <https://arxiv.org/abs/1710.03740>.

mod loss_scale;

use std::fmt;
use std::str::FromStr;

use burn::tensor::FloatDType;

pub use loss_scale::{LossScale, LossScaleError, LossScaleOptions};

/// The number format of forward and backward.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Precision {
    /// IEEE single precision, or whatever the parameters are.
    #[default]
    F32,
    /// bfloat16, with `f32` master weights.
    Bf16,
    /// IEEE half precision, with `f32` master weights and a loss scale.
    F16,
}

impl Precision {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::F32, Self::Bf16, Self::F16];

    /// The name used in configurations.
    pub const fn name(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::Bf16 => "bf16",
            Self::F16 => "f16",
        }
    }

    /// The type that inputs and activations have.
    pub const fn compute_dtype(self) -> FloatDType {
        match self {
            Self::F32 => FloatDType::F32,
            Self::Bf16 => FloatDType::BF16,
            Self::F16 => FloatDType::F16,
        }
    }

    /// The type that `f32` parameters are cast to, if they are.
    pub(crate) fn cast_to(self) -> Option<FloatDType> {
        (self != Self::F32).then(|| self.compute_dtype())
    }
}

impl fmt::Display for Precision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Precision {
    type Err = UnknownPrecision;

    fn from_str(name: &str) -> Result<Self, Self::Err> {
        let found = Self::ALL.into_iter().find(|known| known.name() == name);
        found.ok_or_else(|| UnknownPrecision {
            name: name.to_owned(),
        })
    }
}

/// The name of no precision.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("unknown precision `{name}`; known: {}", Precision::ALL.map(Precision::name).join(", "))]
pub struct UnknownPrecision {
    /// The name.
    pub name: String,
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
        assert_eq!(error, "unknown precision `fp8`; known: f32, bf16, f16");
    }
}
