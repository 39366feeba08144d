//! "Floating Point Instructions", "Half Precision Floating Point Instructions" and "Mixed
//! Precision".

use half::{bf16, f16};

use super::formats::Pair;
use super::lanes::{Map, map};
use super::operation::Operation;
use crate::ptx::Type::{self, *};
use crate::ptx::{Instruction, Invalid};

/// Uses one expression for all floating-point types of instructions.
macro_rules! floats {
    ($i:ident, $kind:expr, |$($a:ident),*| $value:expr) => {
        match $kind {
            F32 => map!(f32, |$($a),*| $value),
            F64 => map!(f64, |$($a),*| $value),
            F16 => map!(f16, |$($a),*| $value),
            BF16 => map!(bf16, |$($a),*| $value),
            F16x2 => map!(Pair<f16>, |$($a),*| $value),
            BF16x2 => map!(Pair<bf16>, |$($a),*| $value),
            _ => return $i.unknown(),
        }
    };
}

/// Rounding to nearest, which is the default here, and permission for lower accuracy, which is not
/// used.
const NEAREST: &[&str] = &["rn", "ftz", "approx", "full"];

pub(super) fn translate(i: &Instruction) -> Result<Operation, Invalid> {
    let kind = i.kind()?;
    match i.name.as_str() {
        "add" | "sub" | "mul" if i.find(&["rz", "rm", "rp", "sat"]).is_some() => {
            Operation::two(unusual(i, kind)?, i)
        }
        "add" | "sub" | "mul" | "div" => Operation::two(arithmetic(i, kind)?, i),
        "min" | "max" => Operation::two(extreme(i, kind)?, i),
        "copysign" => Operation::two(copysign(i, kind)?, i),
        "fma" | "mad" => Operation::three(fused(i, kind)?, i),
        "neg" | "abs" => Operation::one(sign(i, kind)?, i),
        _ => Operation::one(function(i, kind)?, i),
    }
}

fn arithmetic(i: &Instruction, kind: Type) -> Result<Map<3>, Invalid> {
    i.only(NEAREST)?;
    Ok(match i.name.as_str() {
        "add" => floats!(i, kind, |a, b| a + b),
        "sub" => floats!(i, kind, |a, b| a - b),
        "mul" => floats!(i, kind, |a, b| a * b),
        "div" if kind == F32 => map!(f32, |a, b| a / b),
        "div" if kind == F64 => map!(f64, |a, b| a / b),
        _ => return i.unknown(),
    })
}

/// Other roundings than to nearest, or saturation to 0 to 1.
fn unusual(i: &Instruction, kind: Type) -> Result<Map<3>, Invalid> {
    i.only(&["rn", "rz", "rm", "rp", "ftz", "sat"])?;
    let how = i.find(&["rz", "rm", "rp", "sat"]);
    if kind != F32 || (i.has("sat") && i.find(&["rz", "rm", "rp"]).is_some()) {
        return i.unknown();
    }
    Ok(match (i.name.as_str(), how) {
        ("add", Some("sat")) => map!(f32, |a, b| saturate(a + b)),
        ("sub", Some("sat")) => map!(f32, |a, b| saturate(a - b)),
        ("mul", Some("sat")) => map!(f32, |a, b| saturate(a * b)),
        ("add", Some("rz")) => map!(f32, |a, b| toward_zero(f64::from(a) + f64::from(b))),
        ("sub", Some("rz")) => map!(f32, |a, b| toward_zero(f64::from(a) - f64::from(b))),
        ("mul", Some("rz")) => map!(f32, |a, b| toward_zero(f64::from(a) * f64::from(b))),
        ("add", Some("rm")) => map!(f32, |a, b| down(f64::from(a) + f64::from(b))),
        ("sub", Some("rm")) => map!(f32, |a, b| down(f64::from(a) - f64::from(b))),
        ("mul", Some("rm")) => map!(f32, |a, b| down(f64::from(a) * f64::from(b))),
        ("add", Some("rp")) => map!(f32, |a, b| up(f64::from(a) + f64::from(b))),
        ("sub", Some("rp")) => map!(f32, |a, b| up(f64::from(a) - f64::from(b))),
        ("mul", Some("rp")) => map!(f32, |a, b| up(f64::from(a) * f64::from(b))),
        _ => return i.unknown(),
    })
}

fn fused(i: &Instruction, kind: Type) -> Result<Map<4>, Invalid> {
    i.only(&["rn", "rz", "rm", "rp", "ftz", "sat", "relu"])?;
    fn exact(a: f32, b: f32, c: f32) -> f64 {
        f64::from(a).mul_add(f64::from(b), f64::from(c))
    }
    let half = matches!(kind, F16 | F16x2 | BF16 | BF16x2);
    Ok(match (i.find(&["rz", "rm", "rp", "sat", "relu"]), kind) {
        (None, _) => floats!(i, kind, |a, b, c| a.mul_add(b, c)),
        (Some("sat"), F32) => map!(f32, |a, b, c| saturate(a.mul_add(b, c))),
        (Some("relu"), _) if half => {
            floats!(i, kind, |a, b, c| nan_max(a.mul_add(b, c), 0.0))
        }
        (Some("rz"), F32) => map!(f32, |a, b, c| toward_zero(exact(a, b, c))),
        (Some("rm"), F32) => map!(f32, |a, b, c| down(exact(a, b, c))),
        (Some("rp"), F32) => map!(f32, |a, b, c| up(exact(a, b, c))),
        _ => return i.unknown(),
    })
}

fn extreme(i: &Instruction, kind: Type) -> Result<Map<3>, Invalid> {
    i.only(&["ftz", "NaN"])?;
    Ok(match (i.name.as_str(), i.has("NaN")) {
        ("min", false) => floats!(i, kind, |a, b| min(a, b)),
        ("max", false) => floats!(i, kind, |a, b| max(a, b)),
        ("min", true) => floats!(i, kind, |a, b| nan_min(a, b)),
        ("max", true) => floats!(i, kind, |a, b| nan_max(a, b)),
        _ => return i.unknown(),
    })
}

/// Works on bits, so a NaN keeps its payload.
fn sign(i: &Instruction, kind: Type) -> Result<Map<2>, Invalid> {
    i.only(&["ftz"])?;
    Ok(match (i.name.as_str(), kind) {
        ("neg", F32) => map!(u32, |a| a ^ 0x8000_0000),
        ("neg", F64) => map!(u64, |a| a ^ 1 << 63),
        ("neg", F16 | BF16) => map!(u16, |a| a ^ 0x8000),
        ("neg", F16x2 | BF16x2) => map!(u32, |a| a ^ 0x8000_8000),
        ("abs", F32) => map!(u32, |a| a & 0x7fff_ffff),
        ("abs", F64) => map!(u64, |a| a & !(1 << 63)),
        ("abs", F16 | BF16) => map!(u16, |a| a & 0x7fff),
        ("abs", F16x2 | BF16x2) => map!(u32, |a| a & 0x7fff_7fff),
        _ => return i.unknown(),
    })
}

/// Combines the sign of the first and the magnitude of the second.
fn copysign(i: &Instruction, kind: Type) -> Result<Map<3>, Invalid> {
    i.only(&[])?;
    Ok(match kind {
        F32 => map!(u32, |a, b| b & 0x7fff_ffff | a & 0x8000_0000),
        F64 => map!(u64, |a, b| b & !(1 << 63) | a & 1 << 63),
        _ => return i.unknown(),
    })
}

fn function(i: &Instruction, kind: Type) -> Result<Map<2>, Invalid> {
    i.only(NEAREST)?;
    Ok(match (i.name.as_str(), kind) {
        ("sqrt", F32) => map!(f32, |a| a.sqrt()),
        ("sqrt", F64) => map!(f64, |a| a.sqrt()),
        ("rsqrt", F32) => map!(f32, |a| (1.0 / f64::from(a).sqrt()) as f32),
        ("rsqrt", F64) => map!(f64, |a| 1.0 / a.sqrt()),
        ("rcp", F32) => map!(f32, |a| 1.0 / a),
        ("rcp", F64) => map!(f64, |a| 1.0 / a),
        ("lg2", F32) => map!(f32, |a| a.log2()),
        ("sin", F32) => map!(f32, |a| a.sin()),
        ("cos", F32) => map!(f32, |a| a.cos()),
        ("ex2", F16 | F16x2 | BF16 | BF16x2 | F32) => floats!(i, kind, |a| a.exp2()),
        ("tanh", F16 | F16x2 | BF16 | BF16x2 | F32) => floats!(i, kind, |a| a.tanh()),
        _ => return i.unknown(),
    })
}

/// `min` and `max` of two formats: NaN only for two NaNs, and -0 below +0, which the CPU's
/// instructions do not guarantee.
trait Ordered: Copy + PartialOrd {
    const NAN: Self;

    fn is_nan(self) -> bool;
    fn is_negative(self) -> bool;
}

macro_rules! ordered {
    ($($type:ident),*) => {$(
        impl Ordered for $type {
            const NAN: Self = $type::NAN;

            #[inline(always)]
            fn is_nan(self) -> bool {
                self.is_nan()
            }

            #[inline(always)]
            fn is_negative(self) -> bool {
                self.is_sign_negative()
            }
        }
    )*};
}

ordered!(f32, f64);

#[inline(always)]
fn min<T: Ordered>(a: T, b: T) -> T {
    if a < b || b.is_nan() || (a == b && a.is_negative()) {
        a
    } else {
        b
    }
}

#[inline(always)]
fn max<T: Ordered>(a: T, b: T) -> T {
    if a > b || b.is_nan() || (a == b && b.is_negative()) {
        a
    } else {
        b
    }
}

#[inline(always)]
fn nan_min<T: Ordered>(a: T, b: T) -> T {
    if a.is_nan() || b.is_nan() {
        T::NAN
    } else {
        min(a, b)
    }
}

#[inline(always)]
fn nan_max<T: Ordered>(a: T, b: T) -> T {
    if a.is_nan() || b.is_nan() {
        T::NAN
    } else {
        max(a, b)
    }
}

/// `.sat`: limits to 0 to 1, and returns 0 for NaN.
#[inline(always)]
pub(super) fn saturate(a: f32) -> f32 {
    if a > 0.0 { a.min(1.0) } else { 0.0 }
}

/// `.rm`
#[inline(always)]
pub(super) fn down(exact: f64) -> f32 {
    let near = exact as f32;
    if f64::from(near) > exact {
        near.next_down()
    } else {
        near
    }
}

/// `.rp`
#[inline(always)]
pub(super) fn up(exact: f64) -> f32 {
    let near = exact as f32;
    if f64::from(near) < exact {
        near.next_up()
    } else {
        near
    }
}

/// `.rz`
#[inline(always)]
pub(super) fn toward_zero(exact: f64) -> f32 {
    if exact < 0.0 { up(exact) } else { down(exact) }
}
