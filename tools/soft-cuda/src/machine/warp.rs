//! A warp of 32 lanes. The lanes with the earliest next instruction continue until they reach lanes
//! further on, end or wait. After a branch that only some take, lanes therefore meet where their
//! paths join.

use super::copy::Copies;
use super::fault::{Fault, FaultKind};
use super::kernel::Translated;
use super::lanes::{LANES, Mask, Row, lanes, mask_of};
use super::memory::{Memory, Private};
use super::operation::{Barrier, Operation, Together};
use super::wgmma::Products;
use crate::ptx::Guard;

/// State on which instructions work.
pub(super) struct Lanes {
    pub registers: Vec<Row>,
    pub private: Private,
    pub copies: Copies,
    pub products: Products,
    /// Number in the block.
    pub number: usize,
}

/// A fault, and its instruction.
pub(super) struct Stop {
    pub fault: Fault,
    pub instruction: usize,
}

/// Wait of a lane at a barrier: the barrier's number, and the number of threads, or 0 for all.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Appointment {
    pub number: u32,
    pub threads: u32,
}

pub(super) struct Warp {
    pub lanes: Lanes,
    next: [usize; LANES],
    /// Existing lanes.
    all: Mask,
    running: Mask,
    /// Lanes that wait for other lanes of the warp.
    parked: Mask,
    /// Lanes that wait for other warps.
    waiting: Mask,
    appointments: [Appointment; LANES],
}

/// Lanes that continue together from one instruction to before another.
struct Front {
    lanes: Mask,
    at: usize,
    until: usize,
}

impl Warp {
    pub fn new(lanes: Lanes, all: Mask) -> Self {
        Self {
            lanes,
            next: [0; LANES],
            all,
            running: 0,
            parked: 0,
            waiting: 0,
            appointments: [Appointment::default(); LANES],
        }
    }

    /// Returns to the first instruction.
    pub fn restart(&mut self) {
        self.lanes.copies.forget();
        self.lanes.products.forget();
        self.next = [0; LANES];
        (self.running, self.parked, self.waiting) = (self.all, 0, 0);
    }

    /// Returns the lanes that have not ended.
    pub fn alive(&self) -> Mask {
        self.running | self.parked | self.waiting
    }

    /// Returns the wait of the first lane at a barrier other than these.
    pub fn appointment(&self, others: &[Appointment]) -> Option<Appointment> {
        let mut waiting = lanes(self.waiting).map(|lane| self.appointments[lane]);
        waiting.find(|appointment| !others.contains(appointment))
    }

    /// Returns the lanes in this wait.
    pub fn waiting_for(&self, appointment: Appointment) -> Mask {
        match self.waiting {
            0 => 0,
            waiting => mask_of(|lane| self.appointments[lane] == appointment) & waiting,
        }
    }

    /// Releases the lanes in this wait.
    pub fn release(&mut self, appointment: Appointment) {
        let released = self.waiting_for(appointment);
        self.waiting &= !released;
        self.running |= released;
    }

    /// Returns the fault of the first lane that waits in vain, if any.
    pub fn stuck(&self) -> Option<Stop> {
        let lane = lanes(self.alive()).next()?;
        let kind = FaultKind::Deadlock;
        let parked = self.parked >> lane & 1 == 1;
        Some(Stop {
            fault: Fault { kind, lane },
            instruction: self.next[lane] - usize::from(!parked),
        })
    }

    pub fn any_parked(&self) -> bool {
        self.parked != 0
    }

    /// Runs until each lane has ended or waits.
    pub fn run(&mut self, code: &[Translated], memory: &Memory<'_>) -> Result<(), Stop> {
        while self.running != 0 {
            let front = self.front();
            self.advance(front, code, memory)?;
        }
        Ok(())
    }

    fn front(&self) -> Front {
        let least = |mask: Mask| lanes(mask).map(|lane| self.next[lane]).min();
        let at = least(self.running).unwrap_or(usize::MAX);
        let first = mask_of(|lane| self.next[lane] == at) & self.running;
        Front {
            lanes: first,
            at,
            until: least(self.running & !first).unwrap_or(usize::MAX),
        }
    }

    fn advance(
        &mut self,
        front: Front,
        code: &[Translated],
        memory: &Memory<'_>,
    ) -> Result<(), Stop> {
        let Front {
            lanes: group,
            mut at,
            until,
        } = front;
        while at < until {
            let Some(instruction) = code.get(at) else {
                self.end(group);
                return Ok(());
            };
            let active = self.active(instruction.guard, group);
            let stop = |fault| Stop {
                fault,
                instruction: at,
            };
            if let Some(counter) = &mut self.lanes.private.counter
                && active != 0
            {
                counter.begin(instruction.unit, active);
            }
            let registers = &mut self.lanes.registers;
            match &instruction.operation {
                _ if active == 0 => {}
                Operation::One(map, operands) => map.run(registers, *operands, active),
                Operation::Two(map, operands) => map.run(registers, *operands, active),
                Operation::Three(map, operands) => map.run(registers, *operands, active),
                Operation::Step(step) => {
                    step.run(&mut self.lanes, memory, active).map_err(stop)?;
                }
                Operation::Nothing => {}
                Operation::Branch(target) if active == group => {
                    at = *target;
                    continue;
                }
                Operation::Together(together) => {
                    let met = self.meet(together.as_ref(), memory, group, active, at);
                    if !met.map_err(stop)? {
                        return Ok(());
                    }
                }
                other => return self.part(other, group, active, at).map_err(stop),
            }
            at += 1;
        }
        self.go(group, at);
        Ok(())
    }

    #[inline]
    fn active(&self, guard: Option<Guard>, group: Mask) -> Mask {
        let Some(Guard { register, negated }) = guard else {
            return group;
        };
        let row = &self.lanes.registers[register];
        mask_of(|lane| (row[lane] & 1 == 1) != negated) & group
    }

    /// Executes an instruction after which not all lanes of the group continue together.
    fn part(
        &mut self,
        operation: &Operation,
        group: Mask,
        active: Mask,
        at: usize,
    ) -> Result<(), Fault> {
        self.go(group, at + 1);
        match operation {
            Operation::Branch(target) => self.go(active, *target),
            Operation::Exit => self.end(active),
            Operation::Barrier(barrier) => self.wait(*barrier, active),
            _ => {
                return Err(Fault {
                    kind: FaultKind::Trap,
                    lane: active.trailing_zeros() as usize,
                });
            }
        }
        Ok(())
    }

    fn go(&mut self, group: Mask, to: usize) {
        for lane in lanes(group) {
            self.next[lane] = to;
        }
    }

    fn end(&mut self, group: Mask) {
        // Lanes that waited for an ended lane check again.
        self.running = (self.running & !group) | self.parked;
        self.parked = 0;
    }

    fn wait(&mut self, barrier: Barrier, group: Mask) {
        let registers = &self.lanes.registers;
        let value = |register: usize, lane: usize| registers[register][lane] as u32;
        for lane in lanes(group) {
            self.appointments[lane] = Appointment {
                number: barrier.number.map_or(u32::MAX, |r| value(r, lane)),
                threads: barrier.threads.map_or(0, |r| value(r, lane)),
            };
        }
        self.running &= !group;
        self.waiting |= group;
    }

    /// Executes a joint operation if all lanes have arrived. Returns true if the group continues.
    fn meet(
        &mut self,
        together: &dyn Together,
        memory: &Memory<'_>,
        group: Mask,
        active: Mask,
        at: usize,
    ) -> Result<bool, Fault> {
        let first = active.trailing_zeros() as usize;
        let members = together.members();
        let wanted = members.map_or(Mask::MAX, |r| self.lanes.registers[r][first] as Mask);
        let here = match self.parked {
            0 => active,
            parked => active | mask_of(|lane| self.next[lane] == at) & parked,
        };
        if self.alive() & wanted & !here != 0 {
            self.running &= !active;
            self.parked |= active;
            self.go(group, at + 1);
            self.go(active, at);
            return Ok(false);
        }
        self.parked &= !here;
        self.running |= here;
        together.run(&mut self.lanes, memory, here)?;
        if here & !group == 0 {
            return Ok(true);
        }
        self.go(here | group, at + 1);
        Ok(false)
    }
}
