//! `wgmma` ("Asynchronous Warpgroup Level Matrix Multiply-Accumulate Instructions"): products of
//! four warps with factors in shared memory and sums in f32. Each warp has sixteen of the 64 rows.
//!
//! They are computed when they are waited for, from the content of shared memory at that time,
//! which reveals a kernel that forgets to wait, or overwrites a factor too early. Layouts are those
//! of the manual's matrix descriptors, as written down in CUTLASS (`make_gmma_desc` in
//! `mma_traits_sm90_gmma.hpp`).

use std::sync::Arc;

use super::fault::{Fault, FaultKind};
use super::lanes::Mask;
use super::matrix::{Shape, add_product};
use super::memory::{Memory, Place};
use super::operation::{Operation, Together};
use super::tile::numbers;
use super::warp::Lanes;
use super::watch::How;
use crate::ptx::Type::{self, *};
use crate::ptx::{Instruction, Invalid, Space};

/// Warps of a group, and rows of one of them.
const WARPS: usize = 4;
const ROWS: usize = 16;

/// Length of the sum of one instruction.
const DEPTH: usize = 16;

/// Largest number of columns, and its divisor.
const MOST_COLUMNS: usize = 256;
const EIGHT: usize = 8;

/// Numbers and bytes that are adjacent in every layout.
const BYTES: u64 = 16;

/// Products of a warp that were not waited for.
#[derive(Debug, Default)]
pub(super) struct Products {
    under_way: Vec<UnderWay>,
    /// Number of closed groups.
    closed: u32,
}

#[derive(Clone, Debug)]
struct UnderWay {
    product: Arc<Product>,
    group: u32,
    a: Matrix,
    b: Matrix,
    /// Era of its beginning, counted by barriers of the block.
    era: u32,
}

impl Products {
    /// Resets to the state before a block.
    pub fn forget(&mut self) {
        self.under_way.clear();
        self.closed = 0;
    }
}

pub(super) fn translate(i: &Instruction) -> Result<Operation, Invalid> {
    let plain = |word: &str| i.only(&[word, "sync", "aligned"]);
    if i.has("fence") {
        // Earlier writes are visible, because instructions run in order here.
        plain("fence")?;
        return Ok(Operation::Nothing);
    }
    if i.has("commit_group") {
        plain("commit_group")?;
        return Operation::together(Commit);
    }
    if i.has("wait_group") {
        plain("wait_group")?;
        i.takes(&[1])?;
        return Operation::together(Wait { but: i.source(0)? });
    }
    begin(i)
}

fn begin(i: &Instruction) -> Result<Operation, Invalid> {
    let shape = i.modifiers.iter().find_map(|word| Shape::of(word));
    let Some(shape) = shape else {
        return i.unknown();
    };
    let word = format!("m{}n{}k{}", shape.m, shape.n, shape.k);
    i.only(&["mma_async", "sync", "aligned", &word])?;
    i.takes(&[8])?;
    let is_known = shape.m == WARPS * ROWS
        && shape.k == DEPTH
        && shape.n.is_multiple_of(EIGHT)
        && (EIGHT..=MOST_COLUMNS).contains(&shape.n);
    let sums = i.destinations(0)?;
    // The factor of the old sum, and signs and orders of the factors.
    let [scale, positive_a, positive_b, across_a, across_b] = [3, 4, 5, 6, 7].map(|n| i.source(n));
    match i.types.as_slice() {
        [F32, F16, F16] | [F32, BF16, BF16] if is_known && sums.len() == shape.n / 2 => {
            Operation::together(Begin {
                product: Arc::new(Product {
                    sums,
                    kind: i.types[1],
                    columns: shape.n,
                }),
                descriptors: [i.source(1)?, i.source(2)?],
                scale: scale?,
                positive: [positive_a?, positive_b?],
                across: [across_a?, across_b?],
            })
        }
        _ => i.unknown(),
    }
}

/// The data of an instruction that its product needs.
#[derive(Debug)]
struct Product {
    /// Four registers for each eight columns, as in `mma`.
    sums: Vec<usize>,
    kind: Type,
    columns: usize,
}

struct Begin {
    product: Arc<Product>,
    descriptors: [usize; 2],
    /// Registers of the operands.
    scale: usize,
    positive: [usize; 2],
    across: [usize; 2],
}

impl Together for Begin {
    fn members(&self) -> Option<usize> {
        None
    }

    fn run(&self, warp: &mut Lanes, memory: &Memory<'_>, active: Mask) -> Result<(), Fault> {
        let lane = active.trailing_zeros() as usize;
        let of = |register: usize| warp.registers[register][lane];
        let unknown = Fault {
            kind: FaultKind::Descriptor,
            lane,
        };
        if of(self.scale) & 1 == 0 || self.positive.map(of) != [1; 2] {
            return Err(unknown);
        }
        let matrix = |n: usize| Matrix::of(of(self.descriptors[n]), of(self.across[n]) == 1);
        let (Some(a), Some(b)) = (matrix(0), matrix(1)) else {
            return Err(unknown);
        };
        let era = match &warp.private.watch {
            Some(watch) => watch
                .era_of_products()
                .map_err(|kind| Fault { kind, lane })?,
            None => 0,
        };
        let group = warp.products.closed;
        let under_way = UnderWay {
            product: self.product.clone(),
            group,
            a,
            b,
            era,
        };
        // The accesses that a GPU may do from now on. The four warps read the second factor
        // together.
        let read = |_, _, _: Place<'_>| ();
        under_way.visit_rows(warp, memory, How::Read, read)?;
        if warp.number.is_multiple_of(WARPS) {
            under_way.visit_columns(warp, memory, How::Read, read)?;
        }
        warp.products.under_way.push(under_way);
        Ok(())
    }
}

/// Closes a group.
struct Commit;

impl Together for Commit {
    fn members(&self) -> Option<usize> {
        None
    }

    fn run(&self, warp: &mut Lanes, _: &Memory<'_>, _: Mask) -> Result<(), Fault> {
        warp.products.closed += 1;
        Ok(())
    }
}

/// Waits for all groups but the last ones.
struct Wait {
    but: usize,
}

impl Together for Wait {
    fn members(&self) -> Option<usize> {
        None
    }

    fn run(&self, warp: &mut Lanes, memory: &Memory<'_>, active: Mask) -> Result<(), Fault> {
        let but = warp.registers[self.but][active.trailing_zeros() as usize] as u32;
        let until = warp.products.closed.saturating_sub(but);
        let waited_for = |product: &mut UnderWay| product.group < until;
        let done: Vec<_> = warp.products.under_way.extract_if(.., waited_for).collect();
        for products in done.chunk_by(|one, next| one.product.sums == next.product.sums) {
            finish(products, warp, memory)?;
        }
        Ok(())
    }
}

/// Adds products to their common sums.
fn finish(products: &[UnderWay], warp: &mut Lanes, memory: &Memory<'_>) -> Result<(), Fault> {
    let Some(Product {
        sums, columns: n, ..
    }) = products.first().map(|first| &*first.product)
    else {
        return Ok(());
    };
    let mut matrix = vec![0.0; ROWS * n];
    for (r, two) in sums.as_chunks::<2>().0.iter().enumerate() {
        let [even, odd] = two.map(|register| warp.registers[register].as_chunks::<4>().0);
        for (group, (even, odd)) in even.iter().zip(odd).enumerate() {
            let eight = &mut matrix[place(group, r, *n)..][..EIGHT];
            for (pair, two) in eight.as_chunks_mut::<2>().0.iter_mut().enumerate() {
                *two = [even[pair], odd[pair]].map(|bits| f32::from_bits(bits as u32));
            }
        }
    }
    for product in products {
        product.add(&mut matrix, warp, memory)?;
    }
    for (r, two) in sums.as_chunks::<2>().0.iter().enumerate() {
        for (odd, &register) in two.iter().enumerate() {
            let groups = warp.registers[register].as_chunks_mut::<4>().0;
            for (group, four) in groups.iter_mut().enumerate() {
                let eight = &matrix[place(group, r, *n)..][..EIGHT];
                for (bits, two) in four.iter_mut().zip(eight.as_chunks::<2>().0) {
                    *bits = two[odd].to_bits().into();
                }
            }
        }
    }
    Ok(())
}

/// Returns the place, in sixteen rows of `n` columns, of the eight numbers that four lanes have in
/// a pair of registers: group `group` of lanes, pair `pair`.
fn place(group: usize, pair: usize, n: usize) -> usize {
    (group + 8 * (pair % 2)) * n + pair / 2 * EIGHT
}

impl UnderWay {
    fn add(&self, matrix: &mut [f32], warp: &mut Lanes, memory: &Memory<'_>) -> Result<(), Fault> {
        let how = How::ReadSince(self.era);
        let n = self.product.columns;
        // The rows of this warp, one after another; all columns, their first numbers, then their
        // second ones.
        let (mut rows, mut columns) = (vec![0.0; ROWS * DEPTH], vec![0.0; DEPTH * n]);
        let (kind, across) = (self.product.kind, self.a.across);
        self.visit_rows(warp, memory, how, |row, k, place| {
            let numbers = eight(place, kind);
            match across {
                true => put(&mut rows, row * DEPTH + k, DEPTH, numbers),
                false => rows[row * DEPTH + k..][..EIGHT].copy_from_slice(&numbers),
            }
        })?;
        let across = self.b.across;
        self.visit_columns(warp, memory, how, |column, k, place| {
            let numbers = eight(place, kind);
            match across {
                true => columns[k * n + column..][..EIGHT].copy_from_slice(&numbers),
                false => put(&mut columns, k * n + column, n, numbers),
            }
        })?;
        let shape = Shape {
            m: ROWS,
            n,
            k: DEPTH,
        };
        add_product(shape, &rows, &columns, matrix);
        Ok(())
    }

    /// Visits the rows of this warp.
    fn visit_rows(
        &self,
        warp: &mut Lanes,
        memory: &Memory<'_>,
        how: How,
        take: impl FnMut(usize, usize, Place<'_>),
    ) -> Result<(), Fault> {
        let first = warp.number % WARPS * ROWS;
        self.a.visit(warp, memory, how, (first, ROWS), take)
    }

    /// Visits all columns.
    fn visit_columns(
        &self,
        warp: &mut Lanes,
        memory: &Memory<'_>,
        how: How,
        take: impl FnMut(usize, usize, Place<'_>),
    ) -> Result<(), Fault> {
        let columns = (0, self.product.columns);
        self.b.visit(warp, memory, how, columns, take)
    }
}

/// Returns the eight numbers in sixteen bytes.
fn eight(place: Place<'_>, kind: Type) -> [f32; EIGHT] {
    let mut bits = [0; EIGHT];
    for (half, four) in bits.as_chunks_mut::<4>().0.iter_mut().enumerate() {
        let all = place.load(half, 8);
        *four = [0, 16, 32, 48].map(|by| (all >> by) as u16);
    }
    match kind {
        F16 => numbers::<true>(&bits),
        _ => numbers::<false>(&bits),
    }
}

/// Writes numbers at distances of `step`.
fn put(to: &mut [f32], first: usize, step: usize, numbers: [f32; EIGHT]) {
    for (n, number) in numbers.into_iter().enumerate() {
        to[first + n * step] = number;
    }
}

/// A factor in shared memory ("Matrix Descriptor Format").
#[derive(Clone, Copy, Debug)]
struct Matrix {
    start: u64,
    /// Offset in bytes.
    leading: u64,
    stride: u64,
    /// Vectors that a swizzle permutes: 1 for none.
    swizzled: u64,
    /// True if rows of the first factor, or columns of the second, are adjacent, instead of the
    /// numbers of a sum.
    across: bool,
}

impl Matrix {
    /// Decodes a descriptor; `None` if it is unknown.
    fn of(descriptor: u64, across: bool) -> Option<Self> {
        let field = |at: u32| (descriptor >> at & 0x3fff) << 4;
        let known = 0x3fff | 0x3fff << 16 | 0x3fff << 32 | 3 << 62;
        if descriptor & !known != 0 {
            return None;
        }
        let swizzled = [1, 8, 4, 2][(descriptor >> 62) as usize];
        Some(Self {
            start: field(0),
            leading: field(16),
            stride: field(32),
            swizzled,
            across,
        })
    }

    /// Returns the address of eight numbers: of row or column `mn` from number `k` on, or, across,
    /// of `mn` and the following ones.
    fn address(&self, mn: usize, k: usize) -> u64 {
        let (mn, k) = (mn as u64, k as u64);
        let Self {
            leading,
            stride,
            swizzled,
            ..
        } = *self;
        let (eight, one) = (mn / 8, mn % 8);
        let offset = match (self.across, swizzled) {
            (false, 1) => eight * stride + one * BYTES + k / 8 * leading,
            (false, _) => eight * stride + one * swizzled * BYTES + k / 8 * BYTES,
            (true, 1) => eight * stride + k / 8 * leading + k % 8 * BYTES,
            (true, _) => {
                let (block, vector) = (eight / swizzled, eight % swizzled);
                block * leading + vector * BYTES + k / 8 * stride + k % 8 * swizzled * BYTES
            }
        };
        let at = self.start + offset;
        at ^ (at >> 7 & (swizzled - 1)) << 4
    }

    /// Calls `take` with the place of each eight numbers of `count` rows or columns from `first`
    /// on, with the row or column relative to `first` and the index of the first number.
    fn visit(
        &self,
        warp: &mut Lanes,
        memory: &Memory<'_>,
        how: How,
        (first, count): (usize, usize),
        mut take: impl FnMut(usize, usize, Place<'_>),
    ) -> Result<(), Fault> {
        let (beside, below) = match self.across {
            true => (count, DEPTH),
            false => (DEPTH, count),
        };
        // Cores of eight times eight numbers, as they are read at once.
        for x in (0..beside).step_by(EIGHT) {
            for y in 0..below {
                let (mn, k) = if self.across { (x, y) } else { (y, x) };
                let at = self.address(first + mn, k);
                let bytes = BYTES as usize;
                let place = memory.place(&mut warp.private, 0, Space::Shared, at, bytes, how)?;
                take(mn, k, place);
            }
        }
        Ok(())
    }
}
