//! Detects races: unordered accesses of two threads to the same memory, of which one writes. Warps
//! and blocks run one after another here, so that a kernel without a needed barrier is right by
//! luck; a GPU runs them at once. compute-sanitizer's `racecheck` does the same for shared memory;
//! this covers global memory too, also between blocks.
//!
//! Within a block an access comes before another if a barrier of the block is in between, if it was
//! the same thread's, or if it was the same warp's and `bar.warp.sync` is in between. Exchange
//! between lanes (`shfl`, `ldmatrix`) orders no memory. Blocks have no order. Atomics, and loads
//! and stores that are `volatile`, `relaxed`, `acquire` or `release`, do not race with each other.
//! The destination of `cp.async` is being written until it is waited for; the source of `wgmma` is
//! being read from its beginning until it is waited for. To see the writes of other threads it
//! needs their `fence.proxy.async`, followed by a barrier.

use std::collections::HashMap;
use std::sync::Mutex;

use super::fault::{Fault, FaultKind, Other};
use super::memory::Range;
use crate::report::lock;

/// Kinds of memory access.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum How {
    Read,
    Write,
    /// A read or a write that others may do at the same time.
    Atomic,
    /// A copy begins to write.
    CopyBegins,
    /// The end of the wait for a copy.
    CopyEnds,
    /// A read that may have happened at any time since this era.
    ReadSince(u32),
}

/// Bytes of global memory that are tracked together.
const LINE: usize = 32;

/// Stands for several lanes or warps.
const SEVERAL: u8 = u8::MAX;

/// An access: thread and time.
#[derive(Clone, Copy, Debug, Default)]
struct Visit {
    /// Counter between barriers of blocks; 0 is never.
    era: u32,
    /// Counter between barriers of the warp.
    step: u16,
    warp: u8,
    lane: u8,
}

/// History of a byte.
#[derive(Clone, Copy, Debug, Default)]
struct Byte {
    written: Visit,
    read: Visit,
    last_write: Writing,
    /// Accesses of this block.
    block: Touched,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Writing {
    #[default]
    Plain,
    Atomic,
    Copying,
}

/// Flags for reads, writes and atomics.
#[derive(Clone, Copy, Debug, Default)]
struct Touched {
    read: bool,
    written: bool,
    atomic: bool,
}

/// Accesses of a launch's blocks to a line, one bit for each byte.
#[derive(Clone, Copy, Debug, Default)]
struct Line {
    read: u32,
    written: u32,
    atomic: u32,
}

/// Accesses to global memory of all finished blocks of a launch.
#[derive(Debug, Default)]
pub(super) struct Blocks(Mutex<HashMap<u64, Line>>);

/// Watches one block.
#[derive(Debug)]
pub(super) struct Watch {
    /// Start of the offsets of shared memory.
    shared: Range,
    of_shared: Vec<Byte>,
    of_global: HashMap<u64, Box<[Byte; LINE]>>,
    /// The first era of the block, and the current one.
    began: u32,
    era: u32,
    warp: u8,
    steps: Vec<u16>,
    /// Warps that wrote to shared memory without a later `fence.proxy.async`.
    unfenced: Vec<bool>,
    /// True if there were any at the last barrier.
    is_unfenced: bool,
}

impl Watch {
    pub fn new(shared: Range, warps: usize) -> Self {
        Self {
            shared,
            of_shared: vec![Byte::default(); (shared.end - shared.start) as usize],
            of_global: HashMap::new(),
            began: 1,
            era: 1,
            warp: 0,
            steps: vec![0; warps],
            unfenced: vec![false; warps],
            is_unfenced: false,
        }
    }

    /// Switches to another warp.
    pub fn turn_to(&mut self, warp: usize) {
        self.warp = warp as u8;
    }

    /// All warps have reached a barrier.
    pub fn barrier(&mut self) {
        self.era += 1;
        self.is_unfenced = self.unfenced.contains(&true);
    }

    /// The warp has reached a `fence.proxy.async`.
    pub fn proxy_fence(&mut self) {
        self.unfenced[usize::from(self.warp)] = false;
    }

    /// Returns the era in which `wgmma` begins to read shared memory.
    ///
    /// # Errors
    ///
    /// Fails if it may not see the writes to it.
    pub fn era_of_products(&self) -> Result<u32, FaultKind> {
        match self.is_unfenced || self.unfenced[usize::from(self.warp)] {
            true => Err(FaultKind::Unfenced),
            false => Ok(self.era),
        }
    }

    /// Lanes of the warp have reached a barrier of theirs.
    pub fn warp_barrier(&mut self) {
        let step = &mut self.steps[usize::from(self.warp)];
        *step = step.wrapping_add(1);
    }

    /// A lane accesses memory of the block, or of the device.
    pub fn touch(&mut self, lane: usize, at: u64, bytes: usize, how: How) -> Result<(), Fault> {
        let visit = Visit {
            era: self.era,
            step: self.steps[usize::from(self.warp)],
            warp: self.warp,
            lane: lane as u8,
        };
        let race = |address, other| {
            let kind = FaultKind::Race { address, other };
            Err(Fault { kind, lane })
        };
        let began = self.began;
        if self.shared.holds(at, bytes) {
            let start = (at - self.shared.start) as usize;
            if matches!(how, How::Write | How::Atomic | How::CopyEnds) {
                self.unfenced[usize::from(self.warp)] = true;
            }
            for (n, byte) in self.of_shared[start..start + bytes].iter_mut().enumerate() {
                if let Some(other) = byte.touch(visit, how, began) {
                    return race((start + n) as u64, other);
                }
            }
            return Ok(());
        }
        // An access is aligned to its size, a power of two and no more than a line.
        let line = self.of_global.entry(at / LINE as u64).or_default();
        let start = at as usize % LINE;
        for (n, byte) in line[start..(start + bytes).min(LINE)]
            .iter_mut()
            .enumerate()
        {
            if let Some(other) = byte.touch(visit, how, began) {
                return race(at + n as u64, other);
            }
        }
        Ok(())
    }

    /// Ends the block: the next one starts with new memory.
    ///
    /// # Errors
    ///
    /// Returns the first address that this block wrote and another block accessed, or the reverse.
    pub fn end_block(&mut self, blocks: &Blocks) -> Result<(), FaultKind> {
        let mut blocks = lock(&blocks.0);
        for (number, bytes) in self.of_global.drain() {
            let line = Line::of(&bytes);
            let others = blocks.entry(number).or_default();
            let raced = others.races_with(line);
            if raced != 0 {
                let address = number * LINE as u64 + u64::from(raced.trailing_zeros());
                let other = Other::Block;
                return Err(FaultKind::Race { address, other });
            }
            others.read |= line.read;
            others.written |= line.written;
            others.atomic |= line.atomic;
        }
        self.era += 1;
        self.began = self.era;
        self.steps.fill(0);
        self.unfenced.fill(false);
        self.is_unfenced = false;
        Ok(())
    }
}

impl Visit {
    /// Returns true if nothing orders this access before `now`.
    fn races_with(self, now: Self) -> bool {
        if self.era != now.era {
            return false;
        }
        self.warp != now.warp || self.step == now.step && self.lane != now.lane
    }

    /// Merges the last access with earlier ones that are not ordered before it.
    fn and(self, now: Self) -> Self {
        if self.era != now.era {
            return now;
        }
        if self.warp != now.warp {
            let warp = SEVERAL;
            return Self { warp, ..now };
        }
        if self.step == now.step && self.lane != now.lane {
            let lane = SEVERAL;
            return Self { lane, ..now };
        }
        now
    }

    fn other(self, wrote: bool) -> Other {
        let known = |number: u8| (number != SEVERAL).then_some(number);
        Other::Thread {
            warp: known(self.warp),
            lane: known(self.lane),
            wrote,
        }
    }
}

impl Byte {
    /// Records an access, or returns the other side of its race.
    fn touch(&mut self, now: Visit, how: How, began: u32) -> Option<Other> {
        if how == How::CopyEnds {
            (self.written, self.last_write) = (now, Writing::Plain);
            return None;
        }
        let copying = self.last_write == Writing::Copying && self.written.era >= began;
        let atomics = how == How::Atomic && self.last_write == Writing::Atomic;
        // A barrier must have been before it began, too.
        let since = match how {
            How::ReadSince(era) => era,
            _ => u32::MAX,
        };
        let later = self.written.era >= since.max(began);
        if copying || later || !atomics && self.written.races_with(now) {
            return Some(self.written.other(true));
        }
        let reads = matches!(how, How::Read | How::ReadSince(_));
        if !reads && self.read.races_with(now) {
            return Some(self.read.other(false));
        }
        match how {
            How::Read | How::ReadSince(_) => {
                self.block.read = true;
                self.read = self.read.and(now);
            }
            How::Atomic => {
                self.block.atomic = true;
                self.written = match atomics {
                    true => self.written.and(now),
                    false => now,
                };
                self.last_write = Writing::Atomic;
            }
            How::Write | How::CopyBegins | How::CopyEnds => {
                self.block.written = true;
                self.written = now;
                self.last_write = match how {
                    How::CopyBegins => Writing::Copying,
                    _ => Writing::Plain,
                };
            }
        }
        None
    }
}

impl Line {
    fn of(bytes: &[Byte; LINE]) -> Self {
        let bits = |is: fn(&Touched) -> bool| {
            let set = bytes.iter().enumerate().filter(|(_, b)| is(&b.block));
            set.fold(0, |bits, (n, _)| bits | 1 << n)
        };
        Self {
            read: bits(|b| b.read),
            written: bits(|b| b.written),
            atomic: bits(|b| b.atomic),
        }
    }

    /// Returns the bytes that one of two blocks wrote and the other accessed.
    fn races_with(self, other: Self) -> u32 {
        let wrote = |a: Self, b: Self| a.written & (b.read | b.written | b.atomic);
        let atomics = |a: Self, b: Self| a.atomic & b.read;
        wrote(self, other) | wrote(other, self) | atomics(self, other) | atomics(other, self)
    }
}
