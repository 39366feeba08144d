//! `cp.async` ("Data Movement and Conversion Instructions"): copies to shared memory, which are over at once,
//! so that there is nothing to wait for.

use super::fault::Fault;
use super::lanes::{Mask, lanes};
use super::memory::Memory;
use super::operation::{Operation, Step};
use super::warp::Lanes;
use crate::ptx::{Instruction, Invalid, Space};

struct Copy {
    /// Register and offset.
    to: (usize, i64),
    from: (usize, i64),
    bytes: usize,
    /// How many of them are read. The others become zero.
    read: usize,
}

pub(super) fn translate(i: &Instruction) -> Result<Operation, Invalid> {
    if !i.has("async") {
        return i.unknown();
    }
    if i.find(&["commit_group", "wait_group", "wait_all"])
        .is_some()
    {
        i.only(&["async", "commit_group", "wait_group", "wait_all"])?;
        return Ok(Operation::Nothing);
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
        let bytes = of(self.bytes) as u32 as usize;
        let read = (of(self.read) as u32 as usize).min(bytes);
        let to = of(self.to.0).wrapping_add_signed(self.to.1);
        let from = of(self.from.0).wrapping_add_signed(self.from.1);
        let own = &mut warp.private;
        let to = memory.place(own, lane, Space::Shared, to, bytes)?;
        if read == bytes && bytes.is_multiple_of(4) {
            let from = memory.place(own, lane, Space::Global, from, bytes)?;
            for word in 0..bytes / 4 {
                to.store(word, 4, from.load(word, 4));
            }
            return Ok(());
        }
        for byte in 0..bytes {
            let value = if byte < read {
                let at = from.wrapping_add(byte as u64);
                memory.place(own, lane, Space::Global, at, 1)?.load(0, 1)
            } else {
                0
            };
            to.store(byte, 1, value);
        }
        Ok(())
    }
}
