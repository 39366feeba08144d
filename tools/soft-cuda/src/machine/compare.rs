//! "Comparison and Selection Instructions".

use half::{bf16, f16};

use super::fault::Fault;
use super::formats::Scalar;
use super::lanes::{Map, Mask, lanes, map};
use super::memory::Memory;
use super::operation::{Operation, Step};
use super::warp::Lanes;
use crate::ptx::Type::{self, *};
use crate::ptx::{Instruction, Invalid, SINK};

const COMPARISONS: &[&str] = &[
    "eq", "ne", "lt", "le", "gt", "ge", "lo", "ls", "hi", "hs", "equ", "neu", "ltu", "leu", "gtu",
    "geu", "num", "nan",
];
const JOINS: &[&str] = &["and", "or", "xor"];

pub(super) fn translate(i: &Instruction) -> Result<Operation, Invalid> {
    if i.name == "selp" {
        i.only(&[])?;
        return Operation::three(map!(u64, |a, b, c| if c & 1 == 1 { a } else { b }), i);
    }
    let Some(comparison) = i.find(COMPARISONS) else {
        return i.unknown();
    };
    i.only(&[COMPARISONS, JOINS, &["ftz"]].concat())?;
    let map = of_type(i, i.kind()?, comparison)?;
    let join = i.find(JOINS);
    if join.is_none() && !i.is_vector(0) {
        return Operation::two(map, i);
    }
    i.takes(&[if join.is_some() { 4 } else { 3 }])?;
    let with = match join {
        Some(_) => Some(i.source(3)?),
        None => None,
    };
    Operation::step(Joined {
        map,
        to: i.pair(0)?,
        a: i.source(1)?,
        b: i.source(2)?,
        join: join.unwrap_or(""),
        with,
    })
}

/// A comparison whose result and its negation are combined with a predicate.
struct Joined {
    map: Map<3>,
    to: [usize; 2],
    a: usize,
    b: usize,
    join: &'static str,
    with: Option<usize>,
}

impl Step for Joined {
    fn run(&self, warp: &mut Lanes, _: &Memory<'_>, active: Mask) -> Result<(), Fault> {
        let registers = &mut warp.registers;
        self.map.run(registers, [SINK, self.a, self.b], active);
        for lane in lanes(active) {
            let compared = registers[SINK][lane];
            let with = self.with.map_or(0, |register| registers[register][lane]);
            for (to, compared) in self.to.into_iter().zip([compared, compared ^ 1]) {
                registers[to][lane] = match self.join {
                    "and" => compared & with,
                    "or" => compared | with,
                    "xor" => compared ^ with,
                    _ => compared,
                };
            }
        }
        Ok(())
    }
}

macro_rules! integers {
    ($i:ident, $type:ident, $comparison:expr) => {
        match $comparison {
            "eq" => map!(u64, |a, b| (a as $type == b as $type).into()),
            "ne" => map!(u64, |a, b| (a as $type != b as $type).into()),
            "lt" | "lo" => map!(u64, |a, b| ((a as $type) < b as $type).into()),
            "le" | "ls" => map!(u64, |a, b| (a as $type <= b as $type).into()),
            "gt" | "hi" => map!(u64, |a, b| (a as $type > b as $type).into()),
            "ge" | "hs" => map!(u64, |a, b| (a as $type >= b as $type).into()),
            _ => return $i.unknown(),
        }
    };
}

/// Comparisons ending in `u` are also true for NaN.
macro_rules! floats {
    ($i:ident, $type:ident, $comparison:expr) => {{
        fn of(bits: u64) -> <$type as Scalar>::Value {
            <$type as Scalar>::read(bits)
        }
        match $comparison {
            "eq" => map!(u64, |a, b| (of(a) == of(b)).into()),
            "ne" => map!(u64, |a, b| (of(a) < of(b) || of(a) > of(b)).into()),
            "lt" => map!(u64, |a, b| (of(a) < of(b)).into()),
            "le" => map!(u64, |a, b| (of(a) <= of(b)).into()),
            "gt" => map!(u64, |a, b| (of(a) > of(b)).into()),
            "ge" => map!(u64, |a, b| (of(a) >= of(b)).into()),
            "equ" => map!(u64, |a, b| u64::from(of(a) < of(b) || of(a) > of(b)) ^ 1),
            "neu" => map!(u64, |a, b| (of(a) != of(b)).into()),
            "ltu" => map!(u64, |a, b| u64::from(of(a) >= of(b)) ^ 1),
            "leu" => map!(u64, |a, b| u64::from(of(a) > of(b)) ^ 1),
            "gtu" => map!(u64, |a, b| u64::from(of(a) <= of(b)) ^ 1),
            "geu" => map!(u64, |a, b| u64::from(of(a) < of(b)) ^ 1),
            "num" => map!(u64, |a, b| (!of(a).is_nan() && !of(b).is_nan()).into()),
            "nan" => map!(u64, |a, b| (of(a).is_nan() || of(b).is_nan()).into()),
            _ => return $i.unknown(),
        }
    }};
}

fn of_type(i: &Instruction, kind: Type, comparison: &str) -> Result<Map<3>, Invalid> {
    Ok(match kind {
        U16 | B16 => integers!(i, u16, comparison),
        U32 | B32 => integers!(i, u32, comparison),
        U64 | B64 => integers!(i, u64, comparison),
        S16 => integers!(i, i16, comparison),
        S32 => integers!(i, i32, comparison),
        S64 => integers!(i, i64, comparison),
        F16 => floats!(i, f16, comparison),
        BF16 => floats!(i, bf16, comparison),
        F32 => floats!(i, f32, comparison),
        F64 => floats!(i, f64, comparison),
        _ => return i.unknown(),
    })
}
