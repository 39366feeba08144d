//! Translated form of an instruction.

use std::sync::atomic::{Ordering, fence};

use super::fault::Fault;
use super::lanes::{Map, Mask};
use super::memory::Memory;
use super::warp::Lanes;
use super::{
    atomic, bits, compare, convert, copy, float, integer, load_store, mma, moves, shuffle, wgmma,
    wmma,
};
use crate::ptx::{Instruction, Invalid, Operand, Type};

/// An instruction that each lane executes separately.
pub(super) trait Step: Send + Sync {
    fn run(&self, lanes: &mut Lanes, memory: &Memory<'_>, active: Mask) -> Result<(), Fault>;
}

/// An instruction that lanes execute together, after all of them have reached it.
pub(super) trait Together: Send + Sync {
    /// Returns the register with the participating lanes; `None` means all existing ones.
    fn members(&self) -> Option<usize>;

    fn run(&self, lanes: &mut Lanes, memory: &Memory<'_>, active: Mask) -> Result<(), Fault>;
}

/// The operation. Arithmetic is separate from other steps, because most instructions are
/// arithmetic.
pub(super) enum Operation {
    One(Map<2>, [usize; 2]),
    Two(Map<3>, [usize; 3]),
    Three(Map<4>, [usize; 4]),
    Step(Box<dyn Step>),
    Together(Box<dyn Together>),
    /// Branch to the instruction of this number.
    Branch(usize),
    Exit,
    Trap,
    Barrier(Barrier),
    Nothing,
}

/// `bar.sync`: the barrier, and the number of threads if not all.
#[derive(Clone, Copy)]
pub(super) struct Barrier {
    pub number: Option<usize>,
    pub threads: Option<usize>,
}

impl Operation {
    pub fn one(map: Map<2>, i: &Instruction) -> Result<Self, Invalid> {
        i.takes(&[2])?;
        Ok(Self::One(map, [i.destination(0)?, i.source(1)?]))
    }

    pub fn two(map: Map<3>, i: &Instruction) -> Result<Self, Invalid> {
        i.takes(&[3])?;
        let operands = [i.destination(0)?, i.source(1)?, i.source(2)?];
        Ok(Self::Two(map, operands))
    }

    pub fn three(map: Map<4>, i: &Instruction) -> Result<Self, Invalid> {
        i.takes(&[4])?;
        let operands = [i.destination(0)?, i.source(1)?, i.source(2)?, i.source(3)?];
        Ok(Self::Three(map, operands))
    }

    pub fn step(step: impl Step + 'static) -> Result<Self, Invalid> {
        Ok(Self::Step(Box::new(step)))
    }

    pub fn together(together: impl Together + 'static) -> Result<Self, Invalid> {
        Ok(Self::Together(Box::new(together)))
    }

    /// Translates an instruction.
    ///
    /// # Errors
    ///
    /// Fails if it is unknown, or has invalid operands.
    pub fn of(i: &Instruction) -> Result<Self, Invalid> {
        let float = i.types.first().is_some_and(|kind| kind.is_float());
        match i.name.as_str() {
            "mov" | "cvta" => moves::translate(i),
            "add" | "sub" | "mul" | "mad" | "div" | "min" | "max" | "neg" | "abs" if float => {
                float::translate(i)
            }
            "fma" | "sqrt" | "rsqrt" | "rcp" | "ex2" | "lg2" | "sin" | "cos" | "tanh"
            | "copysign" => float::translate(i),
            "add" | "sub" | "mul" | "mul24" | "mad" | "dp2a" | "div" | "rem" | "min" | "max"
            | "neg" | "abs" => integer::translate(i),
            "and" | "or" | "xor" | "not" | "shl" | "shr" | "shf" | "bfi" | "bfe" | "lop3"
            | "prmt" | "popc" | "clz" | "brev" => bits::translate(i),
            "setp" | "selp" => compare::translate(i),
            "cvt" => convert::translate(i),
            "ld" | "ldu" | "st" => load_store::translate(i),
            "atom" | "red" => atomic::translate(i),
            "shfl" | "vote" | "elect" | "activemask" => shuffle::translate(i),
            "wmma" => wmma::translate(i),
            "wgmma" => wgmma::translate(i),
            "mma" | "ldmatrix" => mma::translate(i),
            "cp" => copy::translate(i),
            _ => control(i),
        }
    }
}

/// "Control Flow Instructions" and "Parallel Synchronization and Communication Instructions".
fn control(i: &Instruction) -> Result<Operation, Invalid> {
    match i.name.as_str() {
        "bra" => {
            i.only(&["uni"])?;
            match i.operands.as_slice() {
                &[Operand::Target(target)] => Ok(Operation::Branch(target)),
                _ => Err(Invalid("no label".to_owned())),
            }
        }
        "ret" | "exit" => {
            i.only(&["uni"])?;
            i.takes(&[0])?;
            Ok(Operation::Exit)
        }
        "trap" => Ok(Operation::Trap),
        "bar" | "barrier" => barrier(i),
        "fence" if i.has("proxy") => {
            i.only(&["proxy", "async", "shared::cta", "global"])?;
            Operation::step(ProxyFence)
        }
        "membar" | "fence" => Operation::step(Fence),
        // Hints, and waiting for completed work.
        "prefetch" | "prefetchu" | "griddepcontrol" | "nanosleep" => Ok(Operation::Nothing),
        _ => i.unknown(),
    }
}

fn barrier(i: &Instruction) -> Result<Operation, Invalid> {
    if i.has("warp") {
        i.only(&["warp", "sync"])?;
        i.takes(&[1])?;
        return Operation::together(shuffle::WarpBarrier(i.source(0)?));
    }
    if i.has("cluster") {
        // A cluster is one block: arrival does not wait, and waiting means waiting for the block.
        i.only(&[
            "cluster", "arrive", "wait", "release", "acquire", "relaxed", "aligned",
        ])?;
        let every = Barrier {
            number: None,
            threads: None,
        };
        return Ok(match i.has("wait") {
            true => Operation::Barrier(every),
            false => Operation::Nothing,
        });
    }
    i.only(&["cta", "sync", "aligned"])?;
    i.takes(&[1, 2])?;
    if !i.has("sync") || i.types.iter().any(|kind| *kind != Type::B32) {
        return i.unknown();
    }
    let threads = match i.operands.len() {
        2 => Some(i.source(1)?),
        _ => None,
    };
    Ok(Operation::Barrier(Barrier {
        number: Some(i.source(0)?),
        threads,
    }))
}

/// `fence.proxy.async`: makes this thread's writes visible to asynchronous readers of shared
/// memory, such as `wgmma`.
struct ProxyFence;

impl Step for ProxyFence {
    fn run(&self, warp: &mut Lanes, _: &Memory<'_>, _: Mask) -> Result<(), Fault> {
        if let Some(watch) = &mut warp.private.watch {
            watch.proxy_fence();
        }
        Ok(())
    }
}

/// `fence`: makes this thread's writes visible before its later ones.
struct Fence;

impl Step for Fence {
    fn run(&self, _: &mut Lanes, _: &Memory<'_>, _: Mask) -> Result<(), Fault> {
        fence(Ordering::SeqCst);
        Ok(())
    }
}
