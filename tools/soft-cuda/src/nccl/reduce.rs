//! Reductions over the ranks, always in the order of ranks, so that all of them get the same bits.
#![allow(unsafe_code)] // Reads and writes numbers at addresses.

use std::ffi::c_int;

use half::{bf16, f16};

use super::error::Error;

/// `ncclDataType_t`
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Type {
    I8,
    U8,
    I32,
    U32,
    I64,
    U64,
    F16,
    F32,
    F64,
    Bf16,
}

impl Type {
    /// In the order of their numbers.
    const ALL: [Self; 10] = [
        Self::I8,
        Self::U8,
        Self::I32,
        Self::U32,
        Self::I64,
        Self::U64,
        Self::F16,
        Self::F32,
        Self::F64,
        Self::Bf16,
    ];

    pub fn of(number: c_int) -> Result<Self, Error> {
        let found = usize::try_from(number).ok().and_then(|n| Self::ALL.get(n));
        let unknown = || Error::argument(format!("unknown type {number}"));
        found.copied().ok_or_else(unknown)
    }

    /// Returns the bytes of an element.
    pub fn size(self) -> usize {
        match self {
            Self::I8 | Self::U8 => 1,
            Self::F16 | Self::Bf16 => 2,
            Self::I32 | Self::U32 | Self::F32 => 4,
            Self::I64 | Self::U64 | Self::F64 => 8,
        }
    }
}

/// `ncclRedOp_t`
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Operation {
    Sum,
    Product,
    Max,
    Min,
    Mean,
}

impl Operation {
    pub fn of(number: c_int) -> Result<Self, Error> {
        match number {
            0 => Ok(Self::Sum),
            1 => Ok(Self::Product),
            2 => Ok(Self::Max),
            3 => Ok(Self::Min),
            4 => Ok(Self::Mean),
            _ => Err(Error::argument(format!("unknown operation {number}"))),
        }
    }
}

/// Type of the computation.
trait Number: Copy + PartialOrd {
    fn plus(self, other: Self) -> Self;
    fn times(self, other: Self) -> Self;
    fn over(self, ranks: usize) -> Self;
}

macro_rules! integers {
    ($($type:ident)*) => {$(
        impl Number for $type {
            fn plus(self, other: Self) -> Self {
                self.wrapping_add(other)
            }
            fn times(self, other: Self) -> Self {
                self.wrapping_mul(other)
            }
            fn over(self, ranks: usize) -> Self {
                // The number of ranks fits into every type.
                self / ranks as Self
            }
        }

        impl Element for $type {
            type Wide = Self;
            fn widen(self) -> Self {
                self
            }
            fn narrow(wide: Self) -> Self {
                wide
            }
        }
    )*};
}

macro_rules! floats {
    ($($type:ident: $wide:ident, $widen:expr, $narrow:expr;)*) => {$(
        impl Element for $type {
            type Wide = $wide;
            fn widen(self) -> $wide {
                $widen(self)
            }
            fn narrow(wide: $wide) -> Self {
                $narrow(wide)
            }
        }
    )*};
}

macro_rules! wide_floats {
    ($($type:ident)*) => {$(
        impl Number for $type {
            fn plus(self, other: Self) -> Self {
                self + other
            }
            fn times(self, other: Self) -> Self {
                self * other
            }
            fn over(self, ranks: usize) -> Self {
                self / ranks as Self
            }
        }
    )*};
}

/// Type in memory.
trait Element: Copy {
    type Wide: Number;
    fn widen(self) -> Self::Wide;
    fn narrow(wide: Self::Wide) -> Self;
}

integers! { i8 u8 i32 u32 i64 u64 }
wide_floats! { f32 f64 }
floats! {
    f16: f32, f16::to_f32, f16::from_f32;
    bf16: f32, bf16::to_f32, bf16::from_f32;
    f32: f32, std::convert::identity, std::convert::identity;
    f64: f64, std::convert::identity, std::convert::identity;
}

/// Writes the reduction of the elements of all ranks, of which there is at least one, to `to`.
///
/// # Safety
///
/// `to` can be written, and each of `from` read, for `count` elements of the type.
pub(super) unsafe fn reduce(
    kind: Type,
    operation: Operation,
    to: *mut u8,
    from: &[*const u8],
    count: usize,
) {
    let reduce = match kind {
        Type::I8 => with::<i8>,
        Type::U8 => with::<u8>,
        Type::I32 => with::<i32>,
        Type::U32 => with::<u32>,
        Type::I64 => with::<i64>,
        Type::U64 => with::<u64>,
        Type::F16 => with::<f16>,
        Type::F32 => with::<f32>,
        Type::F64 => with::<f64>,
        Type::Bf16 => with::<bf16>,
    };
    // SAFETY: guaranteed by the caller.
    unsafe { reduce(operation, to, from, count) }
}

/// # Safety
///
/// As for [`reduce`].
unsafe fn with<T: Element>(operation: Operation, to: *mut u8, from: &[*const u8], count: usize) {
    let same = |a: T::Wide| a;
    let mean = |a: T::Wide| a.over(from.len());
    let max = |a, b| if b > a { b } else { a };
    let min = |a, b| if b < a { b } else { a };
    // SAFETY: guaranteed by the caller.
    unsafe {
        match operation {
            Operation::Sum => fold::<T>(to, from, count, T::Wide::plus, same),
            Operation::Product => fold::<T>(to, from, count, T::Wide::times, same),
            Operation::Max => fold::<T>(to, from, count, max, same),
            Operation::Min => fold::<T>(to, from, count, min, same),
            Operation::Mean => fold::<T>(to, from, count, T::Wide::plus, mean),
        }
    }
}

/// # Safety
///
/// As for [`reduce`].
unsafe fn fold<T: Element>(
    to: *mut u8,
    from: &[*const u8],
    count: usize,
    join: impl Fn(T::Wide, T::Wide) -> T::Wide,
    end: impl Fn(T::Wide) -> T::Wide,
) {
    for i in 0..count {
        let of_rank = |pointer: &*const u8| {
            // SAFETY: this many elements can be read there.
            unsafe { pointer.cast::<T>().add(i).read_unaligned() }.widen()
        };
        let Some(joined) = from.iter().map(of_rank).reduce(&join) else {
            return;
        };
        // SAFETY: this many elements can be written there.
        unsafe {
            to.cast::<T>()
                .add(i)
                .write_unaligned(T::narrow(end(joined)))
        };
    }
}
