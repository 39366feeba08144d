//! `ld` and `st` ("Data Movement and Conversion Instructions").

use super::fault::Fault;
use super::lanes::{Mask, lanes};
use super::memory::Memory;
use super::operation::{Operation, Step};
use super::warp::Lanes;
use super::watch::How;
use crate::ptx::Type::{self, *};
use crate::ptx::{Instruction, Invalid, Space};

/// Caches and orders without effect, because a lane's accesses are executed in order.
const HINTS: &[&str] = &[
    "weak", "relaxed", "acquire", "release", "volatile", "cta", "cluster", "gpu", "sys", "ca",
    "cg", "cs", "lu", "cv", "wb", "wt", "nc",
];

/// Accesses for synchronization between threads.
const STRONG: &[&str] = &["relaxed", "acquire", "release", "volatile"];

/// `L1::evict_first` and similar.
const HINTED: &[&str] = &["L1::", "L2::"];

pub(super) fn translate(i: &Instruction) -> Result<Operation, Invalid> {
    let words = i.modifiers.iter().map(String::as_str);
    let known = |word: &str| {
        HINTS.contains(&word)
            || HINTED.iter().any(|hint| word.starts_with(hint))
            || Space::of(word).is_some()
            || matches!(word, "v2" | "v4" | "v8")
    };
    if !words.into_iter().all(known) {
        return i.unknown();
    }
    i.takes(&[2])?;
    let kind = i.kind()?;
    let count = match i.find(&["v2", "v4", "v8"]) {
        Some("v2") => 2,
        Some("v4") => 4,
        Some(_) => 8,
        None => 1,
    };
    if kind.size() > 8 || kind == Pred || kind.size() * count > 32 {
        return i.unknown();
    }
    let store = i.name == "st";
    let (base, offset) = i.address(if store { 0 } else { 1 })?;
    let registers = if store {
        i.sources(1)?
    } else {
        i.destinations(0)?
    };
    if registers.len() != count {
        return i.unknown();
    }
    let access = Access {
        space: i.space(),
        kind,
        base,
        offset,
        registers,
        strong: i.find(STRONG).is_some(),
    };
    match store {
        true => Operation::step(Store(access)),
        false => Operation::step(Load(access)),
    }
}

struct Access {
    space: Space,
    kind: Type,
    base: usize,
    offset: i64,
    registers: Vec<usize>,
    /// True if other threads may access it at the same time.
    strong: bool,
}

impl Access {
    fn how(&self, weak: How) -> How {
        match self.strong {
            true => How::Atomic,
            false => weak,
        }
    }

    fn address(&self, warp: &Lanes, lane: usize) -> u64 {
        warp.registers[self.base][lane].wrapping_add_signed(self.offset)
    }

    fn bytes(&self) -> usize {
        self.kind.size() * self.registers.len()
    }
}

struct Load(Access);

impl Step for Load {
    fn run(&self, warp: &mut Lanes, memory: &Memory<'_>, active: Mask) -> Result<(), Fault> {
        let access = &self.0;
        let (size, bytes) = (access.kind.size(), access.bytes());
        let how = access.how(How::Read);
        for lane in lanes(active) {
            let address = access.address(warp, lane);
            let own = &mut warp.private;
            let place = memory.place(own, lane, access.space, address, bytes, how)?;
            for (n, &to) in access.registers.iter().enumerate() {
                let bits = place.load(n, size);
                // A register may be wider than the loaded value, and is then sign-extended.
                warp.registers[to][lane] = match access.kind {
                    S8 => bits as i8 as u64,
                    S16 => bits as i16 as u64,
                    S32 => bits as i32 as u64,
                    _ => bits,
                };
            }
        }
        Ok(())
    }
}

struct Store(Access);

impl Step for Store {
    fn run(&self, warp: &mut Lanes, memory: &Memory<'_>, active: Mask) -> Result<(), Fault> {
        let access = &self.0;
        let (size, bytes) = (access.kind.size(), access.bytes());
        let how = access.how(How::Write);
        for lane in lanes(active) {
            let address = access.address(warp, lane);
            let own = &mut warp.private;
            let place = memory.place(own, lane, access.space, address, bytes, how)?;
            for (n, &from) in access.registers.iter().enumerate() {
                place.store(n, size, warp.registers[from][lane]);
            }
        }
        Ok(())
    }
}
