//! `atom` and `red` ("Parallel Synchronization and Communication Instructions").

use half::{bf16, f16};

use super::fault::Fault;
use super::formats::{Format, Pair};
use super::lanes::{Mask, lanes};
use super::memory::Memory;
use super::operation::{Operation, Step};
use super::warp::Lanes;
use super::watch::How;
use crate::ptx::Type::{self, *};
use crate::ptx::{Instruction, Invalid, SINK, Space};

const OPERATIONS: &[&str] = &[
    "add", "min", "max", "exch", "cas", "and", "or", "xor", "inc", "dec",
];

/// Memory orders, all of which are satisfied, and spaces.
const WORDS: &[&str] = &[
    "relaxed",
    "acquire",
    "release",
    "acq_rel",
    "cta",
    "cluster",
    "gpu",
    "sys",
    "global",
    "shared",
    "shared::cta",
    "noftz",
];

/// The old value, and one or two operands.
type Change = fn(u64, u64, u64) -> u64;

struct Atomic {
    change: Change,
    space: Space,
    size: usize,
    to: usize,
    base: usize,
    offset: i64,
    operands: [usize; 2],
}

pub(super) fn translate(i: &Instruction) -> Result<Operation, Invalid> {
    i.only(&[OPERATIONS, WORDS].concat())?;
    let Some(operation) = i.find(OPERATIONS) else {
        return i.unknown();
    };
    let kind = i.kind()?;
    let at = usize::from(i.name == "atom");
    let operands = if operation == "cas" { 2 } else { 1 };
    i.takes(&[at + 1 + operands])?;
    let first = i.source(at + 1)?;
    let (base, offset) = i.address(at)?;
    Operation::step(Atomic {
        change: change(i, operation, kind)?,
        space: i.space(),
        size: kind.size(),
        to: if at == 1 { i.destination(0)? } else { SINK },
        base,
        offset,
        operands: [
            first,
            if operands == 2 {
                i.source(at + 2)?
            } else {
                first
            },
        ],
    })
}

macro_rules! numbers {
    ($format:ty, |$old:ident, $a:ident| $value:expr) => {
        |old, a, _| <$format>::two(old, a, |$old, $a| $value)
    };
}

fn change(i: &Instruction, operation: &str, kind: Type) -> Result<Change, Invalid> {
    let bits = matches!(kind, B32 | B64);
    Ok(match (operation, kind) {
        ("add", F16) => numbers!(f16, |old, a| old + a),
        ("add", BF16) => numbers!(bf16, |old, a| old + a),
        ("add", F16x2) => numbers!(Pair<f16>, |old, a| old + a),
        ("add", BF16x2) => numbers!(Pair<bf16>, |old, a| old + a),
        ("add", F32) => numbers!(f32, |old, a| old + a),
        ("add", F64) => numbers!(f64, |old, a| old + a),
        ("add", U32 | S32) => numbers!(u32, |old, a| old.wrapping_add(a)),
        ("add", U64 | S64) => numbers!(u64, |old, a| old.wrapping_add(a)),
        ("min", U32) => numbers!(u32, |old, a| old.min(a)),
        ("min", S32) => numbers!(i32, |old, a| old.min(a)),
        ("min", U64) => numbers!(u64, |old, a| old.min(a)),
        ("min", S64) => numbers!(i64, |old, a| old.min(a)),
        ("max", U32) => numbers!(u32, |old, a| old.max(a)),
        ("max", S32) => numbers!(i32, |old, a| old.max(a)),
        ("max", U64) => numbers!(u64, |old, a| old.max(a)),
        ("max", S64) => numbers!(i64, |old, a| old.max(a)),
        ("inc", U32) => numbers!(u32, |old, a| if old >= a { 0 } else { old + 1 }),
        ("dec", U32) => {
            numbers!(u32, |old, a| if old == 0 || old > a { a } else { old - 1 })
        }
        ("and", _) if bits => |old, a, _| old & a,
        ("or", _) if bits => |old, a, _| old | a,
        ("xor", _) if bits => |old, a, _| old ^ a,
        ("exch", _) if bits => |_, a, _| a,
        ("cas", B16) => |old, a, b| if old as u16 == a as u16 { b } else { old },
        ("cas", B32) => |old, a, b| if old as u32 == a as u32 { b } else { old },
        ("cas", B64) => |old, a, b| if old == a { b } else { old },
        _ => return i.unknown(),
    })
}

impl Step for Atomic {
    fn run(&self, warp: &mut Lanes, memory: &Memory<'_>, active: Mask) -> Result<(), Fault> {
        for lane in lanes(active) {
            let address = warp.registers[self.base][lane].wrapping_add_signed(self.offset);
            let (own, size) = (&mut warp.private, self.size);
            let place = memory.place(own, lane, self.space, address, size, How::Atomic)?;
            let [a, b] = self.operands.map(|operand| warp.registers[operand][lane]);
            let old = place.update(self.size, |old| (self.change)(old, a, b));
            warp.registers[self.to][lane] = old;
        }
        Ok(())
    }
}
