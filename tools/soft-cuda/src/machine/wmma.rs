//! `wmma` ("Warp Level Matrix Multiply-Accumulate Instructions"). The manual does not specify the
//! lane of each element. Here the elements are distributed in the order of rows, and start again if
//! registers are left.

use super::fault::Fault;
use super::lanes::{LANES, Mask};
use super::matrix::{Shape, add_product, gather, per_register, scatter};
use super::memory::{Memory, Place};
use super::operation::{Operation, Together};
use super::warp::Lanes;
use super::watch::How;
use crate::ptx::Type::{self, *};
use crate::ptx::{Instruction, Invalid, Space};

/// Upper limit on the elements of a matrix of any shape.
const MOST: usize = 32 * 16;

const WORDS: &[&str] = &[
    "sync",
    "aligned",
    "row",
    "col",
    "load",
    "store",
    "mma",
    "a",
    "b",
    "c",
    "d",
    "global",
    "shared",
    "shared::cta",
    "m16n16k16",
    "m8n32k16",
    "m32n8k16",
    "m16n16k8",
];

pub(super) fn translate(i: &Instruction) -> Result<Operation, Invalid> {
    i.only(WORDS)?;
    let Some(shape) = i.modifiers.iter().find_map(|word| Shape::of(word)) else {
        return i.unknown();
    };
    if i.has("mma") {
        return product(i, shape);
    }
    let kind = i.kind()?;
    let Shape { m, n, k } = shape;
    let (rows, columns, known) = match i.find(&["a", "b", "c", "d"]) {
        Some("a") => (m, k, is_factor(kind, shape)),
        Some("b") => (k, n, is_factor(kind, shape)),
        Some(_) => (m, n, is_sum(kind)),
        None => return i.unknown(),
    };
    let store = i.has("store");
    let of_columns = i.has("col");
    if !known || i.operands.len() != 3 || !(of_columns || i.has("row")) {
        return i.unknown();
    }
    let (base, offset) = i.address(if store { 0 } else { 1 })?;
    let registers = if store {
        i.sources(1)?
    } else {
        i.destinations(0)?
    };
    let stride = i.source(2)?;
    let fragment = Fragment::new(i, registers, kind, rows * columns)?;
    let access = Access {
        fragment,
        space: i.space(),
        base,
        offset,
        stride,
        columns,
        of_columns,
    };
    match store {
        true => Operation::together(Store(access)),
        false => Operation::together(Load(access)),
    }
}

fn is_factor(kind: Type, shape: Shape) -> bool {
    match kind {
        F16 | BF16 => shape.k == 16,
        TF32 => shape.k == 8,
        _ => false,
    }
}

fn is_sum(kind: Type) -> bool {
    matches!(kind, F16 | F32)
}

/// A matrix in registers.
struct Fragment {
    registers: Vec<usize>,
    kind: Type,
    elements: usize,
}

impl Fragment {
    fn new(
        i: &Instruction,
        registers: Vec<usize>,
        kind: Type,
        elements: usize,
    ) -> Result<Self, Invalid> {
        let room = registers.len() * LANES * per_register(kind);
        if room == 0 || !room.is_multiple_of(elements) {
            return i.unknown();
        }
        Ok(Self {
            registers,
            kind,
            elements,
        })
    }

    fn place(&self) -> impl Fn(usize, usize, usize) -> usize {
        let (count, per, all) = (self.registers.len(), per_register(self.kind), self.elements);
        move |lane, register, n| ((lane * count + register) * per + n) % all
    }
}

struct Access {
    fragment: Fragment,
    space: Space,
    base: usize,
    offset: i64,
    stride: usize,
    columns: usize,
    /// True if a column's elements are adjacent in memory.
    of_columns: bool,
}

impl Access {
    /// Calls `work` with every element's register, number within the register, and place in memory.
    fn each(
        &self,
        warp: &mut Lanes,
        memory: &Memory<'_>,
        how: How,
        mut work: impl FnMut(&mut u64, usize, Place<'_>),
    ) -> Result<(), Fault> {
        let Fragment {
            registers, kind, ..
        } = &self.fragment;
        let place = self.fragment.place();
        let size = kind.size();
        for lane in 0..LANES {
            let base = warp.registers[self.base][lane].wrapping_add_signed(self.offset);
            let stride = warp.registers[self.stride][lane] & 0xffff_ffff;
            for (r, &register) in registers.iter().enumerate() {
                for n in 0..per_register(*kind) {
                    let element = place(lane, r, n);
                    let (y, x) = (element / self.columns, element % self.columns);
                    let (far, near) = if self.of_columns { (x, y) } else { (y, x) };
                    let at = (far as u64 * stride + near as u64) * size as u64;
                    let at = base.wrapping_add(at);
                    let own = &mut warp.private;
                    let at = memory.place(own, lane, self.space, at, size, how)?;
                    work(&mut warp.registers[register][lane], n * size * 8, at);
                }
            }
        }
        Ok(())
    }
}

struct Load(Access);

impl Together for Load {
    fn members(&self) -> Option<usize> {
        None
    }

    fn run(&self, warp: &mut Lanes, memory: &Memory<'_>, _: Mask) -> Result<(), Fault> {
        let size = self.0.fragment.kind.size();
        self.0.each(warp, memory, How::Read, |register, shift, at| {
            let kept = if shift == 0 { 0 } else { *register };
            *register = kept | at.load(0, size) << shift;
        })
    }
}

struct Store(Access);

impl Together for Store {
    fn members(&self) -> Option<usize> {
        None
    }

    fn run(&self, warp: &mut Lanes, memory: &Memory<'_>, _: Mask) -> Result<(), Fault> {
        let size = self.0.fragment.kind.size();
        self.0
            .each(warp, memory, How::Write, |register, shift, at| {
                at.store(0, size, *register >> shift);
            })
    }
}

struct Product {
    shape: Shape,
    a: Fragment,
    b: Fragment,
    c: Fragment,
    d: Fragment,
}

fn product(i: &Instruction, shape: Shape) -> Result<Operation, Invalid> {
    i.takes(&[4])?;
    let (d, factor, c) = match *i.types.as_slice() {
        [d, c] => (d, F16, c),
        [d, a, b, c] if a == b => (d, a, c),
        _ => return i.unknown(),
    };
    if !is_factor(factor, shape) || !is_sum(c) || !is_sum(d) {
        return i.unknown();
    }
    let Shape { m, n, k } = shape;
    Operation::together(Product {
        shape,
        a: Fragment::new(i, i.sources(1)?, factor, m * k)?,
        b: Fragment::new(i, i.sources(2)?, factor, k * n)?,
        c: Fragment::new(i, i.sources(3)?, c, m * n)?,
        d: Fragment::new(i, i.destinations(0)?, d, m * n)?,
    })
}

impl Together for Product {
    fn members(&self) -> Option<usize> {
        None
    }

    fn run(&self, warp: &mut Lanes, _: &Memory<'_>, _: Mask) -> Result<(), Fault> {
        let matrix = |of: &Fragment| gather::<MOST>(warp, &of.registers, of.kind, of.place());
        let (a, b, mut sum) = (matrix(&self.a), matrix(&self.b), matrix(&self.c));
        add_product(self.shape, &a, &b, &mut sum);
        let d = &self.d;
        scatter(warp, &d.registers, d.kind, &sum, d.place());
        Ok(())
    }
}
