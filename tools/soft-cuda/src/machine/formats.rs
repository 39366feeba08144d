//! Formats of numbers in a lane's 64-bit register. A narrow number is in the low bits; the bits
//! above it are ignored.

use half::{bf16, f16};

/// Conversion between one kind of number and registers.
pub(super) trait Format {
    /// Type of the computation.
    type Value: Copy;

    fn one(a: u64, f: impl Fn(Self::Value) -> Self::Value) -> u64;
    fn two(a: u64, b: u64, f: impl Fn(Self::Value, Self::Value) -> Self::Value) -> u64;
    fn three(
        a: u64,
        b: u64,
        c: u64,
        f: impl Fn(Self::Value, Self::Value, Self::Value) -> Self::Value,
    ) -> u64;
}

/// A format of one number.
pub(super) trait Scalar {
    /// Type of the computation.
    type Value: Copy;

    fn read(bits: u64) -> Self::Value;
    fn write(value: Self::Value) -> u64;
}

impl<S: Scalar> Format for S {
    type Value = S::Value;

    #[inline(always)]
    fn one(a: u64, f: impl Fn(S::Value) -> S::Value) -> u64 {
        S::write(f(S::read(a)))
    }

    #[inline(always)]
    fn two(a: u64, b: u64, f: impl Fn(S::Value, S::Value) -> S::Value) -> u64 {
        S::write(f(S::read(a), S::read(b)))
    }

    #[inline(always)]
    fn three(a: u64, b: u64, c: u64, f: impl Fn(S::Value, S::Value, S::Value) -> S::Value) -> u64 {
        S::write(f(S::read(a), S::read(b), S::read(c)))
    }
}

macro_rules! integers {
    ($($type:ident as $unsigned:ident),*) => {$(
        impl Scalar for $type {
            type Value = $type;

            #[inline(always)]
            fn read(bits: u64) -> $type {
                bits as $type
            }

            #[inline(always)]
            fn write(value: $type) -> u64 {
                value as $unsigned as u64
            }
        }
    )*};
}

integers!(u8 as u8, u16 as u16, u32 as u32, u64 as u64);
integers!(i8 as u8, i16 as u16, i32 as u32, i64 as u64);

impl Scalar for f32 {
    type Value = f32;

    #[inline(always)]
    fn read(bits: u64) -> f32 {
        f32::from_bits(bits as u32)
    }

    #[inline(always)]
    fn write(value: f32) -> u64 {
        value.to_bits().into()
    }
}

impl Scalar for f64 {
    type Value = f64;

    #[inline(always)]
    fn read(bits: u64) -> f64 {
        f64::from_bits(bits)
    }

    #[inline(always)]
    fn write(value: f64) -> u64 {
        value.to_bits()
    }
}

/// Computes in single precision and rounds once: exact for all but a fused multiply-add.
impl Scalar for f16 {
    type Value = f32;

    #[inline(always)]
    fn read(bits: u64) -> f32 {
        f16::from_bits(bits as u16).to_f32()
    }

    #[inline(always)]
    fn write(value: f32) -> u64 {
        f16::from_f32(value).to_bits().into()
    }
}

/// Like half precision.
impl Scalar for bf16 {
    type Value = f32;

    #[inline(always)]
    fn read(bits: u64) -> f32 {
        bf16::from_bits(bits as u16).to_f32()
    }

    #[inline(always)]
    fn write(value: f32) -> u64 {
        bf16::from_f32(value).to_bits().into()
    }
}

/// Two numbers of 16 bits with separate results.
pub(super) struct Pair<S>(std::marker::PhantomData<S>);

impl<S: Scalar> Format for Pair<S> {
    type Value = S::Value;

    #[inline(always)]
    fn one(a: u64, f: impl Fn(S::Value) -> S::Value) -> u64 {
        S::one(a, &f) | S::one(a >> 16, &f) << 16
    }

    #[inline(always)]
    fn two(a: u64, b: u64, f: impl Fn(S::Value, S::Value) -> S::Value) -> u64 {
        S::two(a, b, &f) | S::two(a >> 16, b >> 16, &f) << 16
    }

    #[inline(always)]
    fn three(a: u64, b: u64, c: u64, f: impl Fn(S::Value, S::Value, S::Value) -> S::Value) -> u64 {
        S::three(a, b, c, &f) | S::three(a >> 16, b >> 16, c >> 16, &f) << 16
    }
}
