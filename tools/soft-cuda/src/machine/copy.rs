//! `cp.async` ("Data Movement and Conversion Instructions"): copies to shared memory. They arrive
//! when they are waited for, not before, which reveals a kernel that forgets to wait, or waits for
//! too few.

use super::fault::Fault;
use super::lanes::{LANES, Mask, lanes};
use super::memory::Memory;
use super::operation::{Operation, Step};
use super::warp::Lanes;
use super::watch::How;
use crate::ptx::{Instruction, Invalid, Space};

/// Copies of a warp that have not arrived.
#[derive(Debug, Default)]
pub(super) struct Copies {
    under_way: Vec<UnderWay>,
    /// Number of groups that each lane has closed.
    closed: [u32; LANES],
}

#[derive(Debug)]
struct UnderWay {
    lane: usize,
    /// The group of its lane.
    group: u32,
    to: u64,
    bytes: usize,
    values: [u8; 16],
}

impl Copies {
    /// Resets to the state before a block.
    pub fn forget(&mut self) {
        self.under_way.clear();
        self.closed = [0; LANES];
    }
}

struct Copy {
    /// Register and offset.
    to: (usize, i64),
    from: (usize, i64),
    bytes: usize,
    /// Number of bytes that are read. The others become zero.
    read: usize,
}

/// Closes a group of each lane.
struct Commit;

/// Waits for all groups but the last ones, or for everything.
struct Wait {
    but: Option<usize>,
}

pub(super) fn translate(i: &Instruction) -> Result<Operation, Invalid> {
    if !i.has("async") {
        return i.unknown();
    }
    if i.has("commit_group") {
        i.only(&["async", "commit_group"])?;
        return Operation::step(Commit);
    }
    if i.has("wait_group") {
        i.only(&["async", "wait_group"])?;
        i.takes(&[1])?;
        let but = Some(i.source(0)?);
        return Operation::step(Wait { but });
    }
    if i.has("wait_all") {
        i.only(&["async", "wait_all"])?;
        return Operation::step(Wait { but: None });
    }
    i.only(&[
        "async",
        "ca",
        "cg",
        "shared",
        "shared::cta",
        "global",
        "L2::64B",
        "L2::128B",
        "L2::256B",
    ])?;
    i.takes(&[3, 4])?;
    Operation::step(Copy {
        to: i.address(0)?,
        from: i.address(1)?,
        bytes: i.source(2)?,
        read: i.source(i.operands.len() - 1)?,
    })
}

impl Step for Copy {
    fn run(&self, warp: &mut Lanes, memory: &Memory<'_>, active: Mask) -> Result<(), Fault> {
        for lane in lanes(active) {
            self.lane(warp, memory, lane)?;
        }
        Ok(())
    }
}

impl Copy {
    fn lane(&self, warp: &mut Lanes, memory: &Memory<'_>, lane: usize) -> Result<(), Fault> {
        let of = |register: usize| warp.registers[register][lane];
        let mut values = [0; 16];
        let bytes = (of(self.bytes) as u32 as usize).min(values.len());
        let read = (of(self.read) as u32 as usize).min(bytes);
        let to = of(self.to.0).wrapping_add_signed(self.to.1);
        let from = of(self.from.0).wrapping_add_signed(self.from.1);
        let own = &mut warp.private;
        memory.place(own, lane, Space::Shared, to, bytes, How::CopyBegins)?;
        if read == values.len() {
            let from = memory.place(own, lane, Space::Global, from, read, How::Read)?;
            for (at, eight) in values.as_chunks_mut::<8>().0.iter_mut().enumerate() {
                *eight = from.load(at, 8).to_le_bytes();
            }
        } else if read == bytes {
            let from = memory.place(own, lane, Space::Global, from, bytes, How::Read)?;
            for (at, value) in values.iter_mut().enumerate().take(read) {
                *value = from.load(at, 1) as u8;
            }
        } else {
            for (at, value) in values.iter_mut().enumerate().take(read) {
                let at = from.wrapping_add(at as u64);
                let from = memory.place(own, lane, Space::Global, at, 1, How::Read)?;
                *value = from.load(0, 1) as u8;
            }
        }
        warp.copies.under_way.push(UnderWay {
            lane,
            group: warp.copies.closed[lane],
            to,
            bytes,
            values,
        });
        Ok(())
    }
}

impl Step for Commit {
    fn run(&self, warp: &mut Lanes, _: &Memory<'_>, active: Mask) -> Result<(), Fault> {
        for lane in lanes(active) {
            warp.copies.closed[lane] += 1;
        }
        Ok(())
    }
}

impl Step for Wait {
    fn run(&self, warp: &mut Lanes, memory: &Memory<'_>, active: Mask) -> Result<(), Fault> {
        // The number of groups of each lane to wait for.
        let mut until = [0; LANES];
        for lane in lanes(active) {
            until[lane] = match self.but {
                Some(but) => {
                    let but = warp.registers[but][lane] as u32;
                    warp.copies.closed[lane].saturating_sub(but)
                }
                None => u32::MAX,
            };
        }
        let waited_for = |copy: &mut UnderWay| copy.group < until[copy.lane];
        let arrived: Vec<_> = warp.copies.under_way.extract_if(.., waited_for).collect();
        for copy in arrived {
            let own = &mut warp.private;
            let UnderWay {
                lane, to, bytes, ..
            } = copy;
            let to = memory.place(own, lane, Space::Shared, to, bytes, How::CopyEnds)?;
            if copy.bytes == copy.values.len() {
                for (at, eight) in copy.values.as_chunks::<8>().0.iter().enumerate() {
                    to.store(at, 8, u64::from_le_bytes(*eight));
                }
                continue;
            }
            for (at, value) in copy.values.iter().enumerate().take(copy.bytes) {
                to.store(at, 1, u64::from(*value));
            }
        }
        Ok(())
    }
}
