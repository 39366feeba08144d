//! A block: runs its warps one after another, with its barriers.

use super::copy::Copies;
use super::counts::{Counter, Counts};
use super::grid::{Launch, LaunchError};
use super::lanes::{LANES, Mask};
use super::memory::{Buffer, Memory, Private};
use super::warp::{Lanes, Stop, Warp};
use super::watch::{Blocks, Watch};
use super::wgmma::Products;
use super::{Failure, Fault, Range};
use crate::ptx::{Axis, Fill, Special};

/// Runs blocks, one after another.
pub(super) struct Block<'l> {
    launch: &'l Launch<'l>,
    memory: Memory<'l>,
    warps: Vec<Warp>,
    /// Registers that hold the number of the block.
    numbers: Vec<(usize, Axis)>,
    counter: Option<Box<Counter>>,
    watch: Option<(Box<Watch>, &'l Blocks)>,
    /// Memory of `memory` and the warps.
    _buffers: Vec<Buffer>,
}

impl<'l> Block<'l> {
    pub fn new(launch: &'l Launch<'l>) -> Result<Self, LaunchError> {
        let kernel = launch.kernel;
        let warps = launch.threads().div_ceil(LANES);
        let mut buffers = Vec::new();
        let mut buffer = |bytes: usize, content: &[u8]| {
            let mut buffer = Buffer::new(bytes).ok_or(LaunchError::OutOfMemory)?;
            buffer.write(content);
            let start = buffer.range().start;
            buffers.push(buffer);
            Ok(Range::new(start, bytes))
        };
        let parameters = buffer(kernel.parameter_bytes, launch.arguments)?;
        let shared = buffer(kernel.dynamic_shared + launch.dynamic_shared, &[])?;
        let mut block = Self {
            launch,
            memory: launch.memory(parameters, shared),
            warps: Vec::with_capacity(warps),
            numbers: Vec::new(),
            counter: None,
            watch: None,
            _buffers: Vec::new(),
        };
        for warp in 0..warps {
            let private = Private {
                local: buffer(kernel.local * LANES, &[])?,
                lane_bytes: kernel.local,
                ..Private::default()
            };
            block.add(warp, private, parameters.start);
        }
        let number = |&(register, fill): &(usize, Fill)| match fill {
            Fill::Special(Special::Block(axis)) => Some((register, axis)),
            _ => None,
        };
        block.numbers = kernel.fills.iter().filter_map(number).collect();
        block._buffers = buffers;
        Ok(block)
    }

    /// Does the same as [`Self::new`], and detects races, also between these blocks.
    pub fn watched(launch: &'l Launch<'l>, blocks: &'l Blocks) -> Result<Self, LaunchError> {
        let mut block = Self::new(launch)?;
        let watch = Watch::new(block.memory.shared(), block.warps.len());
        block.watch = Some((Box::new(watch), blocks));
        Ok(block)
    }

    fn add(&mut self, warp: usize, private: Private, parameters: u64) {
        let launch = self.launch;
        let mut registers = vec![[0; LANES]; launch.kernel.registers];
        for &(register, fill) in &launch.kernel.fills {
            for (lane, slot) in registers[register].iter_mut().enumerate() {
                *slot = match fill {
                    Fill::Constant(bits) => bits,
                    Fill::Global(variable) => launch.globals[variable],
                    Fill::Parameter(offset) => parameters + offset as u64,
                    Fill::Shared(offset) => offset as u64,
                    Fill::DynamicShared => launch.kernel.dynamic_shared as u64,
                    Fill::Local(offset) => {
                        private.local.start + (lane * private.lane_bytes + offset) as u64
                    }
                    Fill::Special(special) => launch.special(special, warp, lane),
                };
            }
        }
        let missing = (warp + 1) * LANES;
        let missing = missing.saturating_sub(launch.threads());
        let lanes = Lanes {
            registers,
            private,
            copies: Copies::default(),
            products: Products::default(),
            number: warp,
        };
        self.warps.push(Warp::new(lanes, Mask::MAX >> missing));
    }

    /// Runs the block of this number.
    pub fn run(&mut self, number: [u32; 3]) -> Result<(), Failure> {
        self.memory.forget_shared();
        for warp in &mut self.warps {
            for &(register, axis) in &self.numbers {
                warp.lanes.registers[register] = [number[axis].into(); LANES];
            }
            warp.restart();
        }
        let stopped = self.until_all_end();
        stopped.map_err(|(warp, stop)| self.failure(number, warp, stop))?;
        let Some((watch, blocks)) = &mut self.watch else {
            return Ok(());
        };
        let raced = watch.end_block(blocks);
        raced.map_err(|kind| {
            let (fault, instruction) = (Fault { kind, lane: 0 }, usize::MAX);
            self.failure(number, 0, Stop { fault, instruction })
        })
    }

    /// Does the same as [`Self::run`] for each of these blocks, and counts their instructions.
    pub fn run_counted(
        &mut self,
        numbers: impl Iterator<Item = [u32; 3]>,
    ) -> Result<Counts, Failure> {
        self.counter = Some(Box::default());
        for number in numbers {
            self.run(number)?;
            if let Some(counter) = &mut self.counter {
                counter.end_block();
            }
        }
        let counter = self.counter.take().unwrap_or_default();
        Ok(counter.into_counts())
    }

    fn until_all_end(&mut self) -> Result<(), (usize, Stop)> {
        loop {
            for (number, warp) in self.warps.iter_mut().enumerate() {
                warp.lanes.private.counter = self.counter.take();
                let watch = self.watch.take();
                let blocks = watch.map(|(mut watch, blocks)| {
                    watch.turn_to(number);
                    warp.lanes.private.watch = Some(watch);
                    blocks
                });
                let run = warp.run(&self.launch.kernel.code, &self.memory);
                self.counter = warp.lanes.private.counter.take();
                self.watch = warp.lanes.private.watch.take().zip(blocks);
                run.map_err(|stop| (number, stop))?;
            }
            if self.warps.iter().all(|warp| warp.alive() == 0) {
                return Ok(());
            }
            if !self.release() {
                return Err(self.stuck());
            }
        }
    }

    /// Opens the barriers at which all expected threads have arrived.
    fn release(&mut self) -> bool {
        if self.warps.iter().any(Warp::any_parked) {
            return false;
        }
        // All lanes that have not ended wait at some barrier.
        let alive = self.count(Warp::alive);
        let (mut opened, mut seen) = (false, Vec::new());
        while let Some(next) = self.warps.iter().find_map(|warp| warp.appointment(&seen)) {
            let wanted = if next.threads == 0 {
                alive
            } else {
                next.threads
            };
            if self.count(|warp| warp.waiting_for(next)) >= wanted {
                opened = true;
                self.warps.iter_mut().for_each(|warp| warp.release(next));
            }
            seen.push(next);
        }
        if let Some((watch, _)) = self.watch.as_mut().filter(|_| opened) {
            watch.barrier();
        }
        opened
    }

    fn count(&self, lanes: impl Fn(&Warp) -> Mask) -> u32 {
        let each = self.warps.iter().map(|warp| lanes(warp).count_ones());
        each.sum()
    }

    fn stuck(&self) -> (usize, Stop) {
        let first = |parked: bool| {
            let warps = self.warps.iter().enumerate();
            let mut warps = warps.filter(|(_, warp)| !parked || warp.any_parked());
            warps.find_map(|(number, warp)| Some((number, warp.stuck()?)))
        };
        // The caller has found a lane that has not ended.
        first(true).or_else(|| first(false)).unwrap_or_else(|| {
            let kind = super::FaultKind::Deadlock;
            let fault = Fault { kind, lane: 0 };
            let instruction = usize::MAX;
            (0, Stop { fault, instruction })
        })
    }

    fn failure(&self, block: [u32; 3], warp: usize, stop: Stop) -> Failure {
        let kernel = self.launch.kernel;
        let text = kernel.code.get(stop.instruction).map(|i| i.text.clone());
        Failure {
            kind: stop.fault.kind,
            kernel: kernel.name.clone(),
            block,
            warp,
            lane: stop.fault.lane,
            instruction: text.unwrap_or_default(),
        }
    }
}
