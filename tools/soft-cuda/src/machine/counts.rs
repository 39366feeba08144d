//! Counts of some blocks of a launch: instructions by executing unit, and the bytes and pieces of
//! memory they access. A profiler counts the same on a GPU ("Nsight Compute", "Memory Tables"), but
//! with times.

use std::collections::{BTreeMap, HashSet};

use super::lanes::Mask;
use super::matrix::Shape;
use crate::ptx::Instruction;

/// Bytes of a sector, the smallest transfer of the L2 cache.
const SECTOR: u64 = 32;

/// Bytes of a bank of shared memory, and the number of banks.
const BANK: u64 = 4;
const BANKS: u64 = 32;

/// The unit that executes an instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Unit {
    /// `mma`, `wmma`.
    TensorCores,
    /// `wgmma` of this many columns, a warp's quarter of it.
    Warpgroup(u16),
    /// Sums and products of floating-point numbers.
    Float,
    /// Functions and quotients of floating-point numbers.
    Special,
    /// Integers, bits and comparisons.
    Integer,
    /// Integer division, which takes a dozen instructions.
    IntegerDivision,
    /// `cvt`.
    Conversion,
    /// `mov` and similar, few of which are instructions of a GPU.
    Move,
    /// Loads from global and local memory.
    Load,
    /// Stores to them, and atomics.
    Store,
    /// Loads from shared memory.
    SharedLoad,
    /// Stores to it.
    SharedStore,
    /// `ldmatrix`.
    LoadMatrix,
    /// `cp.async` through the SM's own cache.
    Copy,
    /// `cp.async` bypassing it.
    CopyPast,
    /// Exchange between lanes.
    Shuffle,
    /// Waiting for the other warps.
    Barrier,
    /// Branches, and waiting for copies.
    Control,
}

impl Unit {
    pub(super) fn of(i: &Instruction) -> Self {
        let float = i.types.first().is_some_and(|kind| kind.is_float());
        let shared = i.has("shared") || i.has("shared::cta");
        match i.name.as_str() {
            "mma" | "wmma" if !i.has("load") && !i.has("store") => Self::TensorCores,
            "wmma" | "ldmatrix" => Self::LoadMatrix,
            "wgmma" if i.has("mma_async") => {
                let shape = i.modifiers.iter().find_map(|word| Shape::of(word));
                Self::Warpgroup(shape.map_or(0, |shape| shape.n as u16))
            }
            "wgmma" => Self::Control,
            "ex2" | "lg2" | "sin" | "cos" | "tanh" | "sqrt" | "rsqrt" | "rcp" => Self::Special,
            "div" if float => Self::Special,
            "div" | "rem" => Self::IntegerDivision,
            "add" | "sub" | "mul" | "mad" | "fma" | "neg" | "abs" | "min" | "max" if float => {
                Self::Float
            }
            "cvt" => Self::Conversion,
            "mov" | "cvta" => Self::Move,
            "ld" | "ldu" if i.has("param") => Self::Move,
            "ld" | "ldu" if shared => Self::SharedLoad,
            "ld" | "ldu" => Self::Load,
            "st" if shared => Self::SharedStore,
            "st" | "atom" | "red" => Self::Store,
            "cp" if i.has("commit_group") || i.has("wait_group") || i.has("wait_all") => {
                Self::Control
            }
            "cp" if i.has("cg") => Self::CopyPast,
            "cp" => Self::Copy,
            "shfl" | "vote" | "elect" | "activemask" => Self::Shuffle,
            "bar" | "barrier" => Self::Barrier,
            "bra" | "ret" | "exit" | "trap" | "membar" | "fence" => Self::Control,
            _ => Self::Integer,
        }
    }
}

/// Totals of one kind of instructions over all warps.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Count {
    /// Instructions of warps.
    pub instructions: u64,
    /// Lanes that executed them.
    pub lanes: u64,
    /// Bytes of global memory requested by lanes.
    pub bytes: u64,
    /// Sectors of global memory with these bytes, per instruction.
    pub sectors: u64,
    /// Accesses to shared memory, of 32 banks at most each.
    pub wavefronts: u64,
    /// The smallest possible number of them.
    pub least_wavefronts: u64,
}

/// Counts of blocks.
#[derive(Clone, Debug, Default)]
pub struct Counts {
    /// By executing unit.
    pub of: BTreeMap<Unit, Count>,
    /// Sectors of global memory that a block read, each counted once per block, over all blocks.
    pub read: u64,
    /// Sectors read through the SM's own cache, which may serve repeated reads.
    pub read_near: u64,
    /// Sectors that a block wrote.
    pub written: u64,
    /// Number of blocks.
    pub blocks: u64,
}

/// Memory accessed by a lane.
#[derive(Clone, Copy, Debug)]
pub(super) struct Touched {
    pub shared: bool,
    pub at: u64,
    pub bytes: usize,
}

/// Counts the work of the warps of one block, one warp after the other.
#[derive(Debug, Default)]
pub(super) struct Counter {
    counts: Counts,
    /// The current instruction's unit, and its accesses so far.
    current: Option<Unit>,
    touched: Vec<Touched>,
    read: HashSet<u64>,
    read_near: HashSet<u64>,
    written: HashSet<u64>,
}

impl Counter {
    /// Begins an instruction: earlier accesses belong to the previous one.
    pub fn begin(&mut self, unit: Unit, active: Mask) {
        self.close();
        self.current = Some(unit);
        let count = self.counts.of.entry(unit).or_default();
        count.instructions += 1;
        count.lanes += u64::from(active.count_ones());
    }

    pub fn touch(&mut self, touched: Touched) {
        self.touched.push(touched);
    }

    /// Ends the block.
    pub fn end_block(&mut self) {
        self.close();
        self.counts.blocks += 1;
        self.counts.read += self.read.drain().count() as u64;
        self.counts.read_near += self.read_near.drain().count() as u64;
        self.counts.written += self.written.drain().count() as u64;
    }

    /// Returns the totals.
    pub fn into_counts(self) -> Counts {
        self.counts
    }

    fn close(&mut self) {
        let touched = std::mem::take(&mut self.touched);
        let Some(unit) = self.current.filter(|_| !touched.is_empty()) else {
            return;
        };
        let (shared, global): (Vec<&Touched>, Vec<&Touched>) =
            touched.iter().partition(|one| one.shared);
        let sectors: HashSet<u64> = global.iter().flat_map(|one| one.sectors()).collect();
        let least = wavefronts_at_least(&shared);
        let wavefronts = wavefronts(&shared);
        let count = self.counts.of.entry(unit).or_default();
        // The wait for copies accesses shared memory again, where the copies were counted already.
        if unit != Unit::Control {
            count.bytes += global.iter().map(|one| one.bytes as u64).sum::<u64>();
            count.sectors += sectors.len() as u64;
            count.wavefronts += wavefronts;
            count.least_wavefronts += least;
        }
        match unit {
            Unit::Load | Unit::Copy => {
                self.read_near.extend(&sectors);
                self.read.extend(sectors);
            }
            Unit::CopyPast => self.read.extend(sectors),
            _ => self.written.extend(sectors),
        }
        self.touched = touched;
        self.touched.clear();
    }
}

impl Touched {
    fn sectors(&self) -> impl Iterator<Item = u64> + use<> {
        self.at / SECTOR..(self.at + self.bytes as u64).div_ceil(SECTOR)
    }
}

/// Returns groups of lanes whose accesses to shared memory may be combined: 128 bytes each.
fn phases<'t>(touched: &'t [&'t Touched]) -> impl Iterator<Item = &'t [&'t Touched]> {
    let bytes = touched
        .first()
        .map_or(1, |one| one.bytes.max(BANK as usize));
    touched.chunks((BANKS * BANK) as usize / bytes)
}

fn wavefronts_at_least(touched: &[&Touched]) -> u64 {
    phases(touched).count() as u64
}

/// A phase takes as many accesses as the most requested bank has words to return.
fn wavefronts(touched: &[&Touched]) -> u64 {
    let of_phase = |phase: &[&Touched]| {
        let words = phase.iter().flat_map(|one| {
            let end = (one.at + one.bytes as u64).div_ceil(BANK);
            one.at / BANK..end
        });
        let words: HashSet<u64> = words.collect();
        let mut of_bank = [0u64; BANKS as usize];
        for word in words {
            of_bank[(word % BANKS) as usize] += 1;
        }
        of_bank.into_iter().max().unwrap_or(0)
    };
    phases(touched).map(of_phase).sum()
}
