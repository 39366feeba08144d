//! `mma` and `ldmatrix` ("Warp Level Matrix Multiply-Accumulate Instructions"), in the layouts of
//! the manual: a lane of group `lane / 4` has elements of that row and the one 8 further, or of
//! that column.

use super::fault::Fault;
use super::lanes::{LANES, Mask};
use super::matrix::{Shape, add_product, gather, per_register, scatter};
use super::memory::Memory;
use super::operation::{Operation, Together};
use super::tile::{Operands, TileProduct};
use super::warp::Lanes;
use super::watch::How;
use crate::ptx::Type::{self, *};
use crate::ptx::{Instruction, Invalid, Space};

/// Upper limit on the elements of a matrix of any shape.
const MOST: usize = 16 * 16;

/// Columns of the second factor.
const N: usize = 8;

pub(super) fn translate(i: &Instruction) -> Result<Operation, Invalid> {
    if i.name == "ldmatrix" {
        return load(i);
    }
    i.only(&[
        "sync", "aligned", "row", "col", "m16n8k4", "m16n8k8", "m16n8k16",
    ])?;
    i.takes(&[4])?;
    let shape = i.modifiers.iter().find_map(|word| Shape::of(word));
    let (Some(shape), &[d, factor, other, c]) = (shape, i.types.as_slice()) else {
        return i.unknown();
    };
    let known = match factor {
        F16 | BF16 => matches!(shape.k, 8 | 16),
        TF32 => matches!(shape.k, 4 | 8),
        _ => false,
    };
    let is_sum = |kind| matches!(kind, F16 | F32);
    if !known || factor != other || !is_sum(c) || !is_sum(d) {
        return i.unknown();
    }
    let product = Product {
        shape,
        factor,
        a: i.sources(1)?,
        b: i.sources(2)?,
        c: (i.sources(3)?, c),
        d: (i.destinations(0)?, d),
    };
    if !product.fits() {
        return i.unknown();
    }
    match product.of_tile() {
        Some(tile) => Operation::together(tile),
        None => Operation::together(product),
    }
}

struct Product {
    shape: Shape,
    /// Type of both factors.
    factor: Type,
    a: Vec<usize>,
    b: Vec<usize>,
    c: (Vec<usize>, Type),
    d: (Vec<usize>, Type),
}

impl Product {
    /// Returns true if the number of registers fits the matrices.
    fn fits(&self) -> bool {
        let Shape { m, n, k } = self.shape;
        let room = |registers: &[usize], kind| registers.len() * LANES * per_register(kind);
        room(&self.a, self.factor) == m * k
            && room(&self.b, self.factor) == k * n
            && room(&self.c.0, self.c.1) == m * n
            && room(&self.d.0, self.d.1) == m * n
    }

    /// Returns a product compiled for its shape, if one exists.
    fn of_tile(&self) -> Option<Tile> {
        let Self { c, d, .. } = self;
        if [c.1, d.1] != [F32; 2] {
            return None;
        }
        let operands = Operands {
            a: self.a.as_slice().try_into().ok()?,
            b: self.b.as_slice().try_into().ok()?,
            c: c.0.as_slice().try_into().ok()?,
            d: d.0.as_slice().try_into().ok()?,
        };
        Some(Tile(TileProduct::of(self.factor)?, operands))
    }
}

struct Tile(TileProduct, Operands);

impl Together for Tile {
    fn members(&self) -> Option<usize> {
        None
    }

    fn run(&self, warp: &mut Lanes, _: &Memory<'_>, _: Mask) -> Result<(), Fault> {
        self.0.run(&mut warp.registers, &self.1);
        Ok(())
    }
}

/// Rows of the first factor: registers alternate between both halves of 8, then continue along `k`.
fn place_a(kind: Type, k: usize) -> impl Fn(usize, usize, usize) -> usize {
    let per = per_register(kind);
    move |lane, register, n| {
        let row = lane / 4 + 8 * (register % 2);
        row * k + lane % 4 * per + n + 4 * per * (register / 2)
    }
}

fn place_b(kind: Type) -> impl Fn(usize, usize, usize) -> usize {
    let per = per_register(kind);
    move |lane, register, n| {
        let at = lane % 4 * per + n + 4 * per * register;
        at * N + lane / 4
    }
}

/// Two neighbours of a row, in one register or two, and two of the row 8 further.
fn place_sum(kind: Type) -> impl Fn(usize, usize, usize) -> usize {
    let per = per_register(kind);
    move |lane, register, n| {
        let element = register * per + n;
        let row = lane / 4 + 8 * (element / 2);
        row * N + lane % 4 * 2 + element % 2
    }
}

impl Together for Product {
    fn members(&self) -> Option<usize> {
        None
    }

    fn run(&self, warp: &mut Lanes, _: &Memory<'_>, _: Mask) -> Result<(), Fault> {
        let kind = self.factor;
        let a = gather::<MOST>(warp, &self.a, kind, place_a(kind, self.shape.k));
        let b = gather::<MOST>(warp, &self.b, kind, place_b(kind));
        let mut sum = gather::<MOST>(warp, &self.c.0, self.c.1, place_sum(self.c.1));
        add_product(self.shape, &a, &b, &mut sum);
        scatter(warp, &self.d.0, self.d.1, &sum, place_sum(self.d.1));
        Ok(())
    }
}

/// Matrices of 8 rows of 8 numbers of 16 bits, a register for each; lanes have the addresses of the
/// rows.
struct LoadMatrix {
    to: Vec<usize>,
    space: Space,
    base: usize,
    offset: i64,
    transposed: bool,
}

fn load(i: &Instruction) -> Result<Operation, Invalid> {
    i.only(&[
        "sync",
        "aligned",
        "m8n8",
        "x1",
        "x2",
        "x4",
        "trans",
        "shared",
        "shared::cta",
    ])?;
    i.takes(&[2])?;
    let count = match i.find(&["x1", "x2", "x4"]) {
        Some("x1") => 1,
        Some("x2") => 2,
        Some(_) => 4,
        None => return i.unknown(),
    };
    let to = i.destinations(0)?;
    let (base, offset) = i.address(1)?;
    if i.types != [B16] || !i.has("m8n8") || to.len() != count {
        return i.unknown();
    }
    Operation::together(LoadMatrix {
        to,
        space: i.space(),
        base,
        offset,
        transposed: i.has("trans"),
    })
}

/// Rows of 8 numbers, two in each word.
type Rows = [[u32; 4]; LANES];

impl LoadMatrix {
    /// Reads the rows of all matrices from the lanes' addresses.
    fn rows(&self, warp: &mut Lanes, memory: &Memory<'_>) -> Result<Rows, Fault> {
        let mut rows = [[0; 4]; LANES];
        for (lane, row) in rows.iter_mut().enumerate().take(8 * self.to.len()) {
            let address = warp.registers[self.base][lane].wrapping_add_signed(self.offset);
            let place =
                memory.place(&mut warp.private, lane, self.space, address, 16, How::Read)?;
            let [first, second] = [place.load(0, 8), place.load(1, 8)];
            let words = [first, first >> 32, second, second >> 32];
            *row = words.map(|word| word as u32);
        }
        Ok(rows)
    }
}

/// Returns number `x` of a row.
fn number(row: &[u32; 4], x: usize) -> u32 {
    row[x / 2] >> (16 * (x % 2)) & 0xffff
}

impl Together for LoadMatrix {
    fn members(&self) -> Option<usize> {
        None
    }

    fn run(&self, warp: &mut Lanes, memory: &Memory<'_>, _: Mask) -> Result<(), Fault> {
        // All rows are read before a register is written, because one may hold the addresses.
        let matrices = self.rows(warp, memory)?;
        for (&to, rows) in self.to.iter().zip(matrices.as_chunks::<8>().0) {
            for (lane, register) in warp.registers[to].iter_mut().enumerate() {
                let (y, two) = (lane / 4, lane % 4);
                let bits = match self.transposed {
                    true => number(&rows[2 * two], y) | number(&rows[2 * two + 1], y) << 16,
                    false => rows[y][two],
                };
                *register = bits.into();
            }
        }
        Ok(())
    }
}
