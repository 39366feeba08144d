//! `cvt` ("Data Movement and Conversion Instructions").

use std::cmp::Ordering;

use half::{bf16, f16};

use super::fault::Fault;
use super::float::toward_zero;
use super::formats::Scalar;
use super::lanes::{Map, Mask, lanes, map};
use super::memory::Memory;
use super::operation::{Operation, Step};
use super::warp::Lanes;
use crate::ptx::Type::{self, *};
use crate::ptx::{Instruction, Invalid};

pub(super) fn translate(i: &Instruction) -> Result<Operation, Invalid> {
    i.only(&[
        "rn", "rz", "rm", "rp", "rna", "rni", "rzi", "rmi", "rpi", "ftz", "sat", "relu",
    ])?;
    let &[to, from] = i.types.as_slice() else {
        return i.unknown();
    };
    let rule = Rule {
        to,
        from,
        rounding: Rounding::of(i),
        whole: i.find(&["rni", "rzi", "rmi", "rpi"]).is_some(),
        saturate: i.has("sat"),
        relu: i.has("relu"),
    };
    if matches!(to, F16x2 | BF16x2) {
        return packed(i, rule);
    }
    let one = |kind: Type| matches!(kind, F16 | BF16 | F32 | F64) || !kind.is_float();
    let known = one(from) && (one(to) || to == TF32);
    if !known || [to, from].iter().any(|kind| matches!(kind, Pred | B128)) {
        return i.unknown();
    }
    if let Some(map) = rule.common() {
        return Operation::one(map, i);
    }
    i.takes(&[2])?;
    Operation::step(Convert {
        rule,
        to: i.destination(0)?,
        from: i.source(1)?,
    })
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Rounding {
    Nearest,
    /// To nearest, with ties away from zero.
    Away,
    Zero,
    Down,
    Up,
}

impl Rounding {
    fn of(i: &Instruction) -> Self {
        match i.find(&["rz", "rzi", "rm", "rmi", "rp", "rpi", "rna"]) {
            Some("rz" | "rzi") => Self::Zero,
            Some("rm" | "rmi") => Self::Down,
            Some("rp" | "rpi") => Self::Up,
            Some(_) => Self::Away,
            None => Self::Nearest,
        }
    }
}

/// Parameters of a conversion.
#[derive(Clone, Copy, Debug)]
struct Rule {
    to: Type,
    from: Type,
    rounding: Rounding,
    /// Rounds to an integer.
    whole: bool,
    saturate: bool,
    relu: bool,
}

struct Convert {
    rule: Rule,
    to: usize,
    from: usize,
}

impl Step for Convert {
    fn run(&self, warp: &mut Lanes, _: &Memory<'_>, active: Mask) -> Result<(), Fault> {
        for lane in lanes(active) {
            let bits = warp.registers[self.from][lane];
            warp.registers[self.to][lane] = self.rule.convert(bits);
        }
        Ok(())
    }
}

/// `cvt.rn.f16x2.f32 d, a, b`: packs `a` above `b`.
struct Pack {
    rule: Rule,
    to: usize,
    from: [usize; 2],
}

fn packed(i: &Instruction, rule: Rule) -> Result<Operation, Invalid> {
    i.takes(&[3])?;
    if rule.from != F32 || rule.saturate {
        return i.unknown();
    }
    match (rule.to, rule.rounding, rule.relu) {
        (F16x2, Rounding::Nearest, false) => Operation::two(
            map!(u64, |a, b| {
                f16::write(f32::read(a)) << 16 | f16::write(f32::read(b))
            }),
            i,
        ),
        (BF16x2, Rounding::Nearest, false) => Operation::two(
            map!(u64, |a, b| {
                bf16::write(f32::read(a)) << 16 | bf16::write(f32::read(b))
            }),
            i,
        ),
        (to, ..) => Operation::step(Pack {
            rule: Rule {
                to: if to == F16x2 { F16 } else { BF16 },
                ..rule
            },
            to: i.destination(0)?,
            from: [i.source(1)?, i.source(2)?],
        }),
    }
}

impl Step for Pack {
    fn run(&self, warp: &mut Lanes, _: &Memory<'_>, active: Mask) -> Result<(), Fault> {
        for lane in lanes(active) {
            let [high, low] = self.from.map(|from| {
                let bits = warp.registers[from][lane];
                self.rule.convert(bits)
            });
            warp.registers[self.to][lane] = high << 16 | low;
        }
        Ok(())
    }
}

/// Integer to integer: extends the sign to the whole register, whose width is unknown.
macro_rules! integers {
    ($from:expr, $to:ident) => {
        match $from {
            U8 | B8 => Some(map!(u64, |a| a as u8 as $to as u64)),
            U16 | B16 => Some(map!(u64, |a| a as u16 as $to as u64)),
            U32 | B32 => Some(map!(u64, |a| a as u32 as $to as u64)),
            S8 => Some(map!(u64, |a| a as i8 as $to as u64)),
            S16 => Some(map!(u64, |a| a as i16 as $to as u64)),
            S32 => Some(map!(u64, |a| a as i32 as $to as u64)),
            _ => Some(map!(u64, |a| a as $to as u64)),
        }
    };
}

impl Rule {
    /// Returns a function for all lanes at once, for frequent conversions.
    fn common(self) -> Option<Map<2>> {
        if self.saturate || self.relu {
            return None;
        }
        match (self.to, self.from, self.rounding) {
            (TF32, F32, Rounding::Away) => Some(map!(u32, |a| tf32(a))),
            (F16, F32, Rounding::Nearest) => Some(map!(u64, |a| f16::write(f32::read(a)))),
            (BF16, F32, Rounding::Nearest) => Some(map!(u64, |a| bf16::write(f32::read(a)))),
            (F32, F16, Rounding::Nearest) if !self.whole => {
                Some(map!(u64, |a| f32::write(f16::read(a))))
            }
            (F32, BF16, Rounding::Nearest) if !self.whole => {
                Some(map!(u64, |a| f32::write(bf16::read(a))))
            }
            (F32, S32, Rounding::Nearest) => Some(map!(u64, |a| f32::write(a as i32 as f32))),
            (F32, U32, Rounding::Nearest) => Some(map!(u64, |a| f32::write(a as u32 as f32))),
            (U8 | B8, from, _) if !from.is_float() => integers!(from, u8),
            (U16 | B16, from, _) if !from.is_float() => integers!(from, u16),
            (U32 | B32, from, _) if !from.is_float() => integers!(from, u32),
            (U64 | B64, from, _) if !from.is_float() => integers!(from, u64),
            (S8, from, _) if !from.is_float() => integers!(from, i8),
            (S16, from, _) if !from.is_float() => integers!(from, i16),
            (S32, from, _) if !from.is_float() => integers!(from, i32),
            (S64, from, _) if !from.is_float() => integers!(from, i64),
            _ => None,
        }
    }

    fn convert(self, bits: u64) -> u64 {
        let number = Number::read(self.from, bits);
        match self.to.is_float() {
            true => self.to_float(number),
            false => self.to_integer(number),
        }
    }

    fn to_float(self, number: Number) -> u64 {
        let mut number = match number {
            Number::Float(value) if self.whole => Number::Float(self.rounded(value)),
            number => number,
        };
        if let Number::Float(value) = &mut number {
            if self.saturate {
                *value = if *value > 0.0 { value.min(1.0) } else { 0.0 };
            }
            if self.relu && *value < 0.0 {
                *value = 0.0;
            }
        }
        if self.to == TF32 {
            let bits = number.nearest(F32) as u32;
            return match self.rounding {
                Rounding::Away => tf32(bits),
                Rounding::Zero => bits & !0x1fff,
                _ => tf32_nearest(bits),
            }
            .into();
        }
        let near = number.nearest(self.to);
        let order = number.compare(Number::read(self.to, near));
        let wanted = match (self.rounding, order) {
            (Rounding::Down, Some(Ordering::Less)) => Some(false),
            (Rounding::Up, Some(Ordering::Greater)) => Some(true),
            (Rounding::Zero, Some(Ordering::Less)) if number.is_positive() => Some(false),
            (Rounding::Zero, Some(Ordering::Greater)) if !number.is_positive() => Some(true),
            _ => None,
        };
        wanted.map_or(near, |up| next(near, self.to, up))
    }

    fn to_integer(self, number: Number) -> u64 {
        let whole = match number {
            // The widest integers are narrower than 128 bits, and NaN becomes 0.
            Number::Float(value) => self.rounded(value) as i128,
            Number::Integer(value) => value,
        };
        let limited = match self.to {
            U8 | B8 => whole.clamp(0, u8::MAX.into()),
            U16 | B16 => whole.clamp(0, u16::MAX.into()),
            U32 | B32 => whole.clamp(0, u32::MAX.into()),
            U64 | B64 => whole.clamp(0, u64::MAX.into()),
            S8 => whole.clamp(i8::MIN.into(), i8::MAX.into()),
            S16 => whole.clamp(i16::MIN.into(), i16::MAX.into()),
            S32 => whole.clamp(i32::MIN.into(), i32::MAX.into()),
            _ => whole.clamp(i64::MIN.into(), i64::MAX.into()),
        };
        limited as u64
    }

    fn rounded(self, value: f64) -> f64 {
        match self.rounding {
            Rounding::Zero => value.trunc(),
            Rounding::Down => value.floor(),
            Rounding::Up => value.ceil(),
            Rounding::Nearest | Rounding::Away => value.round_ties_even(),
        }
    }
}

/// Rounds to 19 bits of single precision, with ties away from zero.
#[inline(always)]
fn tf32(bits: u32) -> u32 {
    if bits & 0x7fff_ffff > 0x7f80_0000 {
        0x7fff_ffff
    } else {
        bits.wrapping_add(0x1000) & !0x1fff
    }
}

fn tf32_nearest(bits: u32) -> u32 {
    if bits & 0x7fff_ffff > 0x7f80_0000 {
        return 0x7fff_ffff;
    }
    let odd = bits >> 13 & 1;
    bits.wrapping_add(0xfff + odd) & !0x1fff
}

/// Rounds to single precision, to odd if inexact. A second rounding, to a narrower format, then
/// gives the same as a single one.
fn odd(exact: f64) -> f32 {
    let cut = toward_zero(exact);
    if f64::from(cut) == exact || exact.is_nan() {
        return cut;
    }
    f32::from_bits(cut.to_bits() | 1)
}

/// Returns the neighbour of a floating-point number, in bits.
fn next(bits: u64, kind: Type, up: bool) -> u64 {
    let sign = 1 << (kind.size() * 8 - 1);
    match (bits & !sign, bits & sign == 0) {
        (0, _) => 1 | if up { 0 } else { sign },
        (_, positive) if positive == up => bits + 1,
        _ => bits - 1,
    }
}

/// An exact value.
#[derive(Clone, Copy)]
enum Number {
    Float(f64),
    Integer(i128),
}

impl Number {
    fn read(kind: Type, bits: u64) -> Self {
        match kind {
            F16 => Self::Float(f16::read(bits).into()),
            BF16 => Self::Float(bf16::read(bits).into()),
            F32 => Self::Float(f32::read(bits).into()),
            F64 => Self::Float(f64::read(bits)),
            U8 | B8 => Self::Integer((bits as u8).into()),
            U16 | B16 => Self::Integer((bits as u16).into()),
            U32 | B32 => Self::Integer((bits as u32).into()),
            S8 => Self::Integer((bits as i8).into()),
            S16 => Self::Integer((bits as i16).into()),
            S32 => Self::Integer((bits as i32).into()),
            S64 => Self::Integer((bits as i64).into()),
            _ => Self::Integer(bits.into()),
        }
    }

    /// Returns the bits of the nearest number of this type.
    fn nearest(self, kind: Type) -> u64 {
        let double = match self {
            Self::Float(value) => value,
            Self::Integer(value) => value as f64,
        };
        match (kind, self) {
            (F16, _) => f16::write(odd(double)),
            (BF16, _) => bf16::write(odd(double)),
            (F32, Self::Integer(value)) => f32::write(value as f32),
            (F32, Self::Float(value)) => f32::write(value as f32),
            _ => f64::write(double),
        }
    }

    fn compare(self, rounded: Self) -> Option<Ordering> {
        match (self, rounded) {
            (Self::Float(exact), Self::Float(rounded)) => exact.partial_cmp(&rounded),
            (Self::Integer(exact), Self::Float(rounded)) => Some(exact.cmp(&(rounded as i128))),
            _ => None,
        }
    }

    fn is_positive(self) -> bool {
        match self {
            Self::Float(value) => value > 0.0,
            Self::Integer(value) => value > 0,
        }
    }
}
