//! "Integer Arithmetic Instructions".

use super::lanes::{Map, map};
use super::operation::Operation;
use crate::ptx::Type::{self, *};
use crate::ptx::{Instruction, Invalid};

/// Uses one expression for all integer types of instructions.
macro_rules! integers {
    ($i:ident, $kind:expr, |$($a:ident),*| $value:expr) => {
        match $kind {
            U16 | B16 => map!(u16, |$($a),*| $value),
            U32 | B32 => map!(u32, |$($a),*| $value),
            U64 | B64 => map!(u64, |$($a),*| $value),
            S16 => map!(i16, |$($a),*| $value),
            S32 => map!(i32, |$($a),*| $value),
            S64 => map!(i64, |$($a),*| $value),
            _ => return $i.unknown(),
        }
    };
}

pub(super) use integers;

pub(super) fn translate(i: &Instruction) -> Result<Operation, Invalid> {
    if i.name == "dp2a" {
        return two_products(i);
    }
    let kind = i.kind()?;
    match i.name.as_str() {
        "mul" | "mul24" => product(i, kind),
        "mad" => product_and_sum(i, kind),
        "neg" | "abs" => {
            i.only(&[])?;
            let map = match (i.name.as_str(), kind) {
                (_, U16 | U32 | U64) => return i.unknown(),
                ("neg", _) => integers!(i, kind, |a| a.wrapping_neg()),
                (_, S16) => map!(i16, |a| a.wrapping_abs()),
                (_, S32) => map!(i32, |a| a.wrapping_abs()),
                (_, S64) => map!(i64, |a| a.wrapping_abs()),
                _ => return i.unknown(),
            };
            Operation::one(map, i)
        }
        _ => Operation::two(of_two(i, kind)?, i),
    }
}

fn of_two(i: &Instruction, kind: Type) -> Result<Map<3>, Invalid> {
    if i.has("sat") {
        return saturated(i, kind);
    }
    i.only(&[])?;
    Ok(match i.name.as_str() {
        "add" => integers!(i, kind, |a, b| a.wrapping_add(b)),
        "sub" => integers!(i, kind, |a, b| a.wrapping_sub(b)),
        "min" => integers!(i, kind, |a, b| a.min(b)),
        "max" => integers!(i, kind, |a, b| a.max(b)),
        // Division by zero gives all ones and the dividend on GPUs; the manual leaves it undefined.
        "div" => integers!(i, kind, |a, b| if b == 0 { !0 } else { a.wrapping_div(b) }),
        "rem" => integers!(i, kind, |a, b| if b == 0 { a } else { a.wrapping_rem(b) }),
        _ => return i.unknown(),
    })
}

fn saturated(i: &Instruction, kind: Type) -> Result<Map<3>, Invalid> {
    i.only(&["sat"])?;
    Ok(match (i.name.as_str(), kind) {
        ("add", S32) => map!(i32, |a, b| a.saturating_add(b)),
        ("sub", S32) => map!(i32, |a, b| a.saturating_sub(b)),
        _ => return i.unknown(),
    })
}

fn product(i: &Instruction, kind: Type) -> Result<Operation, Invalid> {
    i.only(&["lo", "hi", "wide"])?;
    let map = match (i.find(&["lo", "hi", "wide"]), kind) {
        (Some("wide"), U16) => map!(u64, |a, b| u64::from(a as u16) * u64::from(b as u16)),
        (Some("wide"), S16) => map!(i32, |a, b| i32::from(a as i16) * i32::from(b as i16)),
        (Some("wide"), U32) => map!(u64, |a, b| u64::from(a as u32) * u64::from(b as u32)),
        (Some("wide"), S32) => map!(i64, |a, b| i64::from(a as i32) * i64::from(b as i32)),
        (Some("hi"), _) if i.name == "mul" => high(i, kind)?,
        (Some("lo"), _) if i.name == "mul" => integers!(i, kind, |a, b| a.wrapping_mul(b)),
        (Some("lo"), U32) => map!(u32, |a, b| (a & 0xff_ffff).wrapping_mul(b & 0xff_ffff)),
        (Some("lo"), S32) => map!(i32, |a, b| (a << 8 >> 8).wrapping_mul(b << 8 >> 8)),
        _ => return i.unknown(),
    };
    Operation::two(map, i)
}

fn high(i: &Instruction, kind: Type) -> Result<Map<3>, Invalid> {
    Ok(match kind {
        U16 => map!(u16, |a, b| ((u32::from(a) * u32::from(b)) >> 16) as u16),
        S16 => map!(i16, |a, b| ((i32::from(a) * i32::from(b)) >> 16) as i16),
        U32 => map!(u32, |a, b| ((u64::from(a) * u64::from(b)) >> 32) as u32),
        S32 => map!(i32, |a, b| ((i64::from(a) * i64::from(b)) >> 32) as i32),
        U64 => map!(u64, |a, b| ((u128::from(a) * u128::from(b)) >> 64) as u64),
        S64 => map!(i64, |a, b| ((i128::from(a) * i128::from(b)) >> 64) as i64),
        _ => return i.unknown(),
    })
}

/// `dp2a`: the sum of the products of both halves with two bytes, the lower ones or the upper ones.
fn two_products(i: &Instruction) -> Result<Operation, Invalid> {
    i.only(&["lo", "hi"])?;
    if i.types.as_slice() != [U32, U32] {
        return i.unknown();
    }
    let map = match i.find(&["lo", "hi"]) {
        Some("lo") => map!(u32, |a, b, c| products_of_halves(
            a as u32, b as u32, c as u32
        )),
        Some("hi") => map!(u32, |a, b, c| products_of_halves(
            a as u32,
            b as u32 >> 16,
            c as u32
        )),
        _ => return i.unknown(),
    };
    Operation::three(map, i)
}

fn products_of_halves(a: u32, b: u32, sum: u32) -> u32 {
    let [lower, upper] = [(a & 0xffff) * (b & 0xff), (a >> 16) * (b >> 8 & 0xff)];
    sum.wrapping_add(lower).wrapping_add(upper)
}

fn product_and_sum(i: &Instruction, kind: Type) -> Result<Operation, Invalid> {
    i.only(&["lo", "hi", "wide"])?;
    let map = match (i.find(&["lo", "hi", "wide"]), kind) {
        (Some("wide"), U16) => map!(u32, |a, b, c| {
            (u32::from(a as u16) * u32::from(b as u16)).wrapping_add(c)
        }),
        (Some("wide"), S16) => map!(i32, |a, b, c| {
            (i32::from(a as i16) * i32::from(b as i16)).wrapping_add(c)
        }),
        (Some("wide"), U32) => map!(u64, |a, b, c| {
            (u64::from(a as u32) * u64::from(b as u32)).wrapping_add(c)
        }),
        (Some("wide"), S32) => map!(i64, |a, b, c| {
            (i64::from(a as i32) * i64::from(b as i32)).wrapping_add(c)
        }),
        (Some("hi"), U32) => map!(u32, |a, b, c| {
            (((u64::from(a) * u64::from(b)) >> 32) as u32).wrapping_add(c)
        }),
        (Some("hi"), S32) => map!(i32, |a, b, c| {
            (((i64::from(a) * i64::from(b)) >> 32) as i32).wrapping_add(c)
        }),
        (Some("hi"), U64) => map!(u64, |a, b, c| {
            (((u128::from(a) * u128::from(b)) >> 64) as u64).wrapping_add(c)
        }),
        (Some("lo"), _) => integers!(i, kind, |a, b, c| a.wrapping_mul(b).wrapping_add(c)),
        _ => return i.unknown(),
    };
    Operation::three(map, i)
}
