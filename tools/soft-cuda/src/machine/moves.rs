//! `mov` and `cvta` ("Data Movement and Conversion Instructions").

use super::fault::Fault;
use super::lanes::{Mask, lanes, map};
use super::memory::Memory;
use super::operation::{Operation, Step};
use super::warp::Lanes;
use crate::ptx::{Instruction, Invalid, Space};

pub(super) fn translate(i: &Instruction) -> Result<Operation, Invalid> {
    i.takes(&[2])?;
    if i.name == "cvta" {
        return address(i);
    }
    i.only(&[])?;
    let size = i.kind()?.size();
    match (i.is_vector(0), i.is_vector(1)) {
        (true, false) => {
            let to = i.destinations(0)?;
            let bits = part_bits(i, size, to.len())?;
            let from = i.source(1)?;
            Operation::step(Unpack { to, from, bits })
        }
        (false, true) => {
            let from = i.sources(1)?;
            let bits = part_bits(i, size, from.len())?;
            let to = i.destination(0)?;
            Operation::step(Pack { to, from, bits })
        }
        _ => Operation::one(map!(u64, |a| a), i),
    }
}

/// Returns the bits of each part of a packed value.
fn part_bits(i: &Instruction, size: usize, parts: usize) -> Result<usize, Invalid> {
    match (size, parts) {
        (2 | 4 | 8, 2) | (4 | 8, 4) => Ok(size * 8 / parts),
        _ => i.unknown(),
    }
}

fn address(i: &Instruction) -> Result<Operation, Invalid> {
    i.only(&[
        "to",
        "global",
        "const",
        "shared",
        "shared::cta",
        "local",
        "param",
    ])?;
    // Only addresses of shared memory differ from those of the generic space.
    if i.space() != Space::Shared {
        return Operation::one(map!(u64, |a| a), i);
    }
    Operation::step(SharedAddress {
        to: i.destination(0)?,
        from: i.source(1)?,
        into_shared: i.has("to"),
    })
}

struct SharedAddress {
    to: usize,
    from: usize,
    into_shared: bool,
}

impl Step for SharedAddress {
    fn run(&self, warp: &mut Lanes, memory: &Memory<'_>, active: Mask) -> Result<(), Fault> {
        let base = memory.shared_base();
        for lane in lanes(active) {
            let from = warp.registers[self.from][lane];
            warp.registers[self.to][lane] = if self.into_shared {
                from.wrapping_sub(base)
            } else {
                from.wrapping_add(base)
            };
        }
        Ok(())
    }
}

struct Pack {
    to: usize,
    from: Vec<usize>,
    bits: usize,
}

impl Step for Pack {
    fn run(&self, warp: &mut Lanes, _: &Memory<'_>, active: Mask) -> Result<(), Fault> {
        let part = (1 << self.bits) - 1;
        let registers = &mut warp.registers;
        for lane in lanes(active) {
            let each = self.from.iter().enumerate();
            let value = each.fold(0, |value, (n, &from)| {
                value | (registers[from][lane] & part) << (n * self.bits)
            });
            registers[self.to][lane] = value;
        }
        Ok(())
    }
}

struct Unpack {
    to: Vec<usize>,
    from: usize,
    bits: usize,
}

impl Step for Unpack {
    fn run(&self, warp: &mut Lanes, _: &Memory<'_>, active: Mask) -> Result<(), Fault> {
        let part = (1 << self.bits) - 1;
        for lane in lanes(active) {
            let value = warp.registers[self.from][lane];
            for (n, &to) in self.to.iter().enumerate() {
                warp.registers[to][lane] = value >> (n * self.bits) & part;
            }
        }
        Ok(())
    }
}
