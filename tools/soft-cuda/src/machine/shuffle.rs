//! Communication between lanes of a warp: `shfl`, `vote`, `elect`, `activemask` and `bar.warp.sync`
//! ("Parallel Synchronization and Communication Instructions").

use super::fault::Fault;
use super::lanes::{Mask, lanes, mask_of};
use super::memory::Memory;
use super::operation::{Operation, Step, Together};
use super::warp::Lanes;
use crate::ptx::{Instruction, Invalid, Type};

pub(super) fn translate(i: &Instruction) -> Result<Operation, Invalid> {
    match i.name.as_str() {
        "shfl" => shuffle(i),
        "vote" => vote(i),
        "elect" => {
            i.only(&["sync"])?;
            i.takes(&[2])?;
            let (to, members) = (i.pair(0)?, i.source(1)?);
            Operation::together(Elect { to, members })
        }
        _ => {
            i.only(&[])?;
            i.takes(&[1])?;
            Operation::step(ActiveMask(i.destination(0)?))
        }
    }
}

/// Waits for lanes of the warp.
pub(super) struct WarpBarrier(pub usize);

impl Together for WarpBarrier {
    fn members(&self) -> Option<usize> {
        Some(self.0)
    }

    fn run(&self, warp: &mut Lanes, _: &Memory<'_>, _: Mask) -> Result<(), Fault> {
        if let Some(watch) = &mut warp.private.watch {
            watch.warp_barrier();
        }
        Ok(())
    }
}

/// The lanes that execute this together.
struct ActiveMask(usize);

impl Step for ActiveMask {
    fn run(&self, warp: &mut Lanes, _: &Memory<'_>, active: Mask) -> Result<(), Fault> {
        for lane in lanes(active) {
            warp.registers[self.0][lane] = active.into();
        }
        Ok(())
    }
}

/// Selects one lane of all.
struct Elect {
    /// The lane, and whether it is this one.
    to: [usize; 2],
    members: usize,
}

impl Together for Elect {
    fn members(&self) -> Option<usize> {
        Some(self.members)
    }

    fn run(&self, warp: &mut Lanes, _: &Memory<'_>, active: Mask) -> Result<(), Fault> {
        let elected = active.trailing_zeros() as usize;
        let [number, chosen] = self.to;
        for lane in lanes(active) {
            warp.registers[number][lane] = elected as u64;
            warp.registers[chosen][lane] = u64::from(lane == elected);
        }
        Ok(())
    }
}

struct Vote {
    /// Function of the lanes, and of those for which the predicate holds.
    result: fn(Mask, Mask) -> u64,
    to: usize,
    from: usize,
    members: usize,
}

fn vote(i: &Instruction) -> Result<Operation, Invalid> {
    i.only(&["sync", "all", "any", "uni", "ballot"])?;
    i.takes(&[3])?;
    if !i.has("sync") {
        return i.unknown();
    }
    Operation::together(Vote {
        result: match i.find(&["all", "any", "uni", "ballot"]) {
            Some("all") => |all, set| (all == set).into(),
            Some("any") => |_, set| (set != 0).into(),
            Some("uni") => |all, set| (set == 0 || all == set).into(),
            Some(_) => |_, set| set.into(),
            None => return i.unknown(),
        },
        to: i.destination(0)?,
        from: i.source(1)?,
        members: i.source(2)?,
    })
}

impl Together for Vote {
    fn members(&self) -> Option<usize> {
        Some(self.members)
    }

    fn run(&self, warp: &mut Lanes, _: &Memory<'_>, active: Mask) -> Result<(), Fault> {
        let predicate = &warp.registers[self.from];
        let set = mask_of(|lane| predicate[lane] & 1 == 1) & active;
        let result = (self.result)(active, set);
        for lane in lanes(active) {
            warp.registers[self.to][lane] = result;
        }
        Ok(())
    }
}

#[derive(Clone, Copy)]
enum Mode {
    Up,
    Down,
    Butterfly,
    Index,
}

struct Shuffle {
    mode: Mode,
    /// The value, and whether the other lane is within the segment.
    to: [usize; 2],
    from: usize,
    b: usize,
    c: usize,
    members: usize,
}

fn shuffle(i: &Instruction) -> Result<Operation, Invalid> {
    i.only(&["sync", "up", "down", "bfly", "idx"])?;
    i.takes(&[5])?;
    if !i.has("sync") || i.types != [Type::B32] {
        return i.unknown();
    }
    Operation::together(Shuffle {
        mode: match i.find(&["up", "down", "bfly", "idx"]) {
            Some("up") => Mode::Up,
            Some("down") => Mode::Down,
            Some("bfly") => Mode::Butterfly,
            Some(_) => Mode::Index,
            None => return i.unknown(),
        },
        to: i.pair(0)?,
        from: i.source(1)?,
        b: i.source(2)?,
        c: i.source(3)?,
        members: i.source(4)?,
    })
}

impl Mode {
    /// Returns the source lane of a lane, if it is within its segment (the manual's pseudocode).
    fn source(self, lane: usize, b: u64, c: u64) -> Option<usize> {
        let (b, clamp, segment) = (b as usize & 31, c as usize & 31, (c >> 8) as usize & 31);
        let first = lane & segment;
        let limit = first | clamp & !segment;
        let (other, inside) = match self {
            Self::Up => {
                let other = lane.wrapping_sub(b);
                return (other.cast_signed() >= limit.cast_signed()).then_some(other);
            }
            Self::Down => (lane + b, lane + b <= limit),
            Self::Butterfly => (lane ^ b, lane ^ b <= limit),
            Self::Index => {
                let other = first | b & !segment;
                (other, other <= limit)
            }
        };
        inside.then_some(other)
    }
}

impl Together for Shuffle {
    fn members(&self) -> Option<usize> {
        Some(self.members)
    }

    fn run(&self, warp: &mut Lanes, _: &Memory<'_>, active: Mask) -> Result<(), Fault> {
        let [from, b, c] = [self.from, self.b, self.c].map(|r| warp.registers[r]);
        let [value, inside] = self.to;
        for lane in lanes(active) {
            let source = self.mode.source(lane, b[lane], c[lane]);
            warp.registers[value][lane] = from[source.unwrap_or(lane)];
            warp.registers[inside][lane] = source.is_some().into();
        }
        Ok(())
    }
}
