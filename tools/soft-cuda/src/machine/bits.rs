//! "Logic and Shift Instructions", and integer instructions that work on bits.

use super::fault::Fault;
use super::integer::integers;
use super::lanes::{Map, Mask, lanes, map};
use super::memory::Memory;
use super::operation::{Operation, Step};
use super::warp::Lanes;
use crate::ptx::Type::{self, *};
use crate::ptx::{Instruction, Invalid};

pub(super) fn translate(i: &Instruction) -> Result<Operation, Invalid> {
    let kind = i.kind()?;
    match i.name.as_str() {
        "shf" => return Operation::three(funnel_shift(i)?, i),
        "bfi" => return insert(i, kind),
        "lop3" => return table(i),
        "prmt" => return permute(i),
        _ => i.only(&[])?,
    }
    match i.name.as_str() {
        "and" => Operation::two(map!(u64, |a, b| a & b), i),
        "or" => Operation::two(map!(u64, |a, b| a | b), i),
        "xor" => Operation::two(map!(u64, |a, b| a ^ b), i),
        "shl" | "shr" => Operation::two(shift(i, kind)?, i),
        "bfe" => Operation::three(extract(i, kind)?, i),
        _ => Operation::one(of_one(i, kind)?, i),
    }
}

fn of_one(i: &Instruction, kind: Type) -> Result<Map<2>, Invalid> {
    Ok(match (i.name.as_str(), kind) {
        ("not", Pred) => map!(u64, |a| !a & 1),
        ("not", B16 | B32 | B64) => integers!(i, kind, |a| !a),
        ("popc", B32) => map!(u32, |a| a.count_ones()),
        ("popc", B64) => map!(u64, |a| a.count_ones().into()),
        ("clz", B32) => map!(u32, |a| a.leading_zeros()),
        ("clz", B64) => map!(u64, |a| a.leading_zeros().into()),
        ("brev", B32) => map!(u32, |a| a.reverse_bits()),
        ("brev", B64) => map!(u64, |a| a.reverse_bits()),
        _ => return i.unknown(),
    })
}

/// Shifts. The amount is a number of 32 bits; beyond the width only the sign remains.
fn shift(i: &Instruction, kind: Type) -> Result<Map<3>, Invalid> {
    Ok(match (i.name.as_str(), kind) {
        ("shl", B16) => map!(u32, |a, n| a.checked_shl(n).unwrap_or(0) & 0xffff),
        ("shl", B32) => map!(u32, |a, n| a.checked_shl(n).unwrap_or(0)),
        ("shl", B64) => map!(u64, |a, n| a.checked_shl(n as u32).unwrap_or(0)),
        ("shr", B16 | U16) => map!(u32, |a, n| (a & 0xffff).checked_shr(n).unwrap_or(0)),
        ("shr", B32 | U32) => map!(u32, |a, n| a.checked_shr(n).unwrap_or(0)),
        ("shr", B64 | U64) => map!(u64, |a, n| a.checked_shr(n as u32).unwrap_or(0)),
        ("shr", S16) => map!(u32, |a, n| ((a as i16) >> n.min(15)).cast_unsigned().into()),
        ("shr", S32) => map!(i32, |a, n| a >> n.cast_unsigned().min(31)),
        ("shr", S64) => map!(i64, |a, n| a >> (n as u32).min(63)),
        _ => return i.unknown(),
    })
}

/// Shifts 64 bits, `b` above `a`, and keeps 32 of them.
fn funnel_shift(i: &Instruction) -> Result<Map<4>, Invalid> {
    i.only(&["l", "r", "wrap", "clamp"])?;
    fn both(a: u32, b: u32) -> u64 {
        u64::from(b) << 32 | u64::from(a)
    }
    Ok(match (i.has("l"), i.has("wrap")) {
        (true, true) => map!(u32, |a, b, n| (both(a, b) << (n & 31) >> 32) as u32),
        (true, false) => map!(u32, |a, b, n| (both(a, b) << n.min(32) >> 32) as u32),
        (false, true) => map!(u32, |a, b, n| (both(a, b) >> (n & 31)) as u32),
        (false, false) => map!(u32, |a, b, n| (both(a, b) >> n.min(32)) as u32),
    })
}

/// `bfe`: extracts a number of bits from a position on, sign-extended if signed.
fn extract(i: &Instruction, kind: Type) -> Result<Map<4>, Invalid> {
    fn unsigned(a: u64, at: u64, n: u64, width: u64) -> u64 {
        let (at, n) = (at & 255, n & 255);
        let a = if at >= width { 0 } else { a >> at };
        a & low(n)
    }
    fn signed(a: u64, at: u64, n: u64, width: u64) -> u64 {
        let (at, n) = (at & 255, n & 255);
        if n == 0 {
            return 0;
        }
        let last = (at + n - 1).min(width - 1);
        let sign = a >> last & 1;
        let here = (width.saturating_sub(at)).min(n);
        let field = if at >= width { 0 } else { a >> at } & low(here);
        if sign == 1 { field | !low(here) } else { field }
    }
    Ok(match kind {
        U32 => map!(u64, |a, at, n| unsigned(a & 0xffff_ffff, at, n, 32)),
        U64 => map!(u64, |a, at, n| unsigned(a, at, n, 64)),
        S32 => map!(u64, |a, at, n| signed(a & 0xffff_ffff, at, n, 32)
            & 0xffff_ffff),
        S64 => map!(u64, |a, at, n| signed(a, at, n, 64)),
        _ => return i.unknown(),
    })
}

/// Returns the lowest `n` bits.
fn low(n: u64) -> u64 {
    1u64.checked_shl(n as u32).map_or(u64::MAX, |bit| bit - 1)
}

/// `prmt`: selects four of eight bytes; each selector is a number and a flag for the sign alone.
fn permute(i: &Instruction) -> Result<Operation, Invalid> {
    i.only(&[])?;
    fn byte(of: u64, selector: u32) -> u32 {
        let byte = (of >> (8 * (selector & 7))) as u8;
        let sign = byte.cast_signed() >> 7;
        let chosen = if selector & 8 != 0 {
            sign.cast_unsigned()
        } else {
            byte
        };
        chosen.into()
    }
    let map = map!(u32, |a, b, selectors| {
        let all = u64::from(b) << 32 | u64::from(a);
        (0..4).fold(0, |out, n| {
            out | byte(all, selectors >> (4 * n) & 15) << (8 * n)
        })
    });
    Operation::three(map, i)
}

/// `bfi d, a, b, at, n`: inserts the lowest bits of `a` into `b`.
struct Insert {
    to: usize,
    a: usize,
    b: usize,
    at: usize,
    n: usize,
    width: u64,
}

fn insert(i: &Instruction, kind: Type) -> Result<Operation, Invalid> {
    i.only(&[])?;
    i.takes(&[5])?;
    if !matches!(kind, B32 | B64) {
        return i.unknown();
    }
    Operation::step(Insert {
        to: i.destination(0)?,
        a: i.source(1)?,
        b: i.source(2)?,
        at: i.source(3)?,
        n: i.source(4)?,
        width: kind.size() as u64 * 8,
    })
}

impl Step for Insert {
    fn run(&self, warp: &mut Lanes, _: &Memory<'_>, active: Mask) -> Result<(), Fault> {
        let registers = &mut warp.registers;
        for lane in lanes(active) {
            let of = |register: usize| registers[register][lane];
            let (at, n) = (of(self.at) & 255, of(self.n) & 255);
            let place = |bits: u64| {
                let inside = at < self.width;
                if inside { bits << at } else { 0 }
            };
            let taken = place(low(n));
            let value = of(self.b) & !taken | place(of(self.a)) & taken;
            registers[self.to][lane] = value & low(self.width);
        }
        Ok(())
    }
}

/// `lop3`: looks up each bit of three sources in a table of eight.
struct Table {
    to: usize,
    sources: [usize; 3],
    table: usize,
}

fn table(i: &Instruction) -> Result<Operation, Invalid> {
    i.only(&[])?;
    i.takes(&[5])?;
    Operation::step(Table {
        to: i.destination(0)?,
        sources: [i.source(1)?, i.source(2)?, i.source(3)?],
        table: i.source(4)?,
    })
}

impl Step for Table {
    fn run(&self, warp: &mut Lanes, _: &Memory<'_>, active: Mask) -> Result<(), Fault> {
        let registers = &mut warp.registers;
        for lane in lanes(active) {
            let table = registers[self.table][lane];
            let sources = self.sources.map(|s| registers[s][lane] as u32);
            let value = (0..8).filter(|entry| table >> entry & 1 == 1);
            let value = value.fold(0, |out, entry| out | entry_of(sources, entry));
            registers[self.to][lane] = value.into();
        }
        Ok(())
    }
}

/// Returns the bits for which the sources are this entry of the table.
fn entry_of([a, b, c]: [u32; 3], entry: u32) -> u32 {
    let of = |bits: u32, place: u32| if entry >> place & 1 == 1 { bits } else { !bits };
    of(a, 2) & of(b, 1) & of(c, 0)
}
