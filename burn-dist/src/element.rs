//! Element types and reductions of collectives.
//!
//! Separate from Burn's `DType`: a collective works on bytes in host memory and knows nothing of
//! tensors.

use half::{bf16, f16};

use crate::named::named;

/// Element type of a [`Buffer`](crate::Buffer). The discriminants are the wire codes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum DType {
    /// IEEE 754 single precision.
    F32 = 1,
    /// IEEE 754 half precision; sums accumulate in `f32`.
    F16 = 2,
    /// bfloat16; sums accumulate in `f32`.
    BF16 = 3,
    /// IEEE 754 double precision.
    F64 = 4,
    /// Signed 32-bit integer; sums wrap.
    I32 = 5,
    /// Signed 64-bit integer; sums wrap.
    I64 = 6,
    /// Unsigned byte; sums wrap.
    U8 = 7,
}

impl DType {
    /// Bytes of one element.
    pub const fn size(self) -> usize {
        match self {
            Self::U8 => 1,
            Self::F16 | Self::BF16 => 2,
            Self::F32 | Self::I32 => 4,
            Self::F64 | Self::I64 => 8,
        }
    }

    /// The type in which its sums are computed and travel.
    pub(crate) const fn of_sums(self) -> Self {
        match self {
            Self::F16 | Self::BF16 => Self::F32,
            other => other,
        }
    }

    /// Whether it is a floating-point type, as [`ReduceOp::Mean`] requires.
    pub const fn is_float(self) -> bool {
        matches!(self, Self::F32 | Self::F16 | Self::BF16 | Self::F64)
    }

    /// The type with this wire code.
    pub fn from_code(code: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|known| *known as u8 == code)
    }
}

named! {
    DType {
        F32 = "f32", F16 = "f16", BF16 = "bf16", F64 = "f64", I32 = "i32", I64 = "i64", U8 = "u8",
    }
}

/// A Rust type that a [`Buffer`](crate::Buffer) can hold.
pub trait Element: bytemuck::Pod + PartialEq + std::fmt::Debug + Send + Sync {
    /// The matching [`DType`].
    const DTYPE: DType;
}

macro_rules! elements {
    ($($type:ty => $dtype:ident),* $(,)?) => {
        $(impl Element for $type { const DTYPE: DType = DType::$dtype; })*
    };
}
elements!(f32 => F32, f16 => F16, bf16 => BF16, f64 => F64, i32 => I32, i64 => I64, u8 => U8);

/// Reduction over ranks. The discriminants are the wire codes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum ReduceOp {
    /// Sum over ranks.
    Sum = 1,
    /// Sum over ranks divided by the world size; floating-point types only.
    Mean = 2,
    /// Smallest element; NaN if any rank has NaN.
    Min = 3,
    /// Largest element; NaN if any rank has NaN.
    Max = 4,
}

impl ReduceOp {
    /// The reduction with this wire code.
    pub fn from_code(code: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|known| *known as u8 == code)
    }

    /// The reduction until all elements are combined: a mean is a sum until its division.
    pub(crate) fn before_division(self) -> Self {
        match self {
            Self::Mean => Self::Sum,
            other => other,
        }
    }
}

named! { ReduceOp { Sum = "sum", Mean = "mean", Min = "min", Max = "max", } }
