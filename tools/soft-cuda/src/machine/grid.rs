//! A launch: runs the blocks of a grid on several threads.
#![allow(unsafe_code)] // That the device's memory is there, only who launches knows.

use std::num::NonZero;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

use super::block::Block;
use super::counts::Counts;
use super::memory::Memory;
use super::watch::Blocks;
use super::{Failure, Kernel, Range};
use crate::ptx::Special;
use crate::report::lock;

/// With fewer blocks per thread, another thread costs more than it saves.
const BLOCKS_PER_THREAD: u64 = 4;

/// Parameters of a launch.
#[derive(Clone, Copy, Debug)]
pub struct Launch<'l> {
    /// The kernel.
    pub kernel: &'l Kernel,
    /// Blocks along each axis.
    pub grid: [u32; 3],
    /// Threads of a block along each axis.
    pub block: [u32; 3],
    /// Bytes of shared memory in addition to the kernel's own.
    pub dynamic_shared: usize,
    /// The parameters in the kernel's layout.
    pub arguments: &'l [u8],
    /// Addresses of the module's variables.
    pub globals: &'l [u64],
    /// The device's memory in ascending order.
    pub device: &'l [Range],
}

/// Errors of a launch.
#[derive(Debug)]
pub enum LaunchError {
    /// No memory for the block.
    OutOfMemory,
    /// A lane's fault.
    Failed(Box<Failure>),
}

impl std::fmt::Display for LaunchError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::OutOfMemory => f.write_str("no memory for a block"),
            Self::Failed(failure) => failure.fmt(f),
        }
    }
}

impl std::error::Error for LaunchError {}

impl Launch<'_> {
    /// Runs all blocks.
    ///
    /// # Errors
    ///
    /// Returns the first fault of a block, after which no further blocks start.
    ///
    /// # Safety
    ///
    /// Each byte of `device` is initialised memory that stays where it is until this returns.
    /// Nobody has a reference to it, and no thread writes to it other than kernels.
    pub unsafe fn run(&self) -> Result<(), LaunchError> {
        self.run_all(|| Block::new(self))
    }

    /// Does the same as [`Self::run`], and fails if threads race. That is much slower.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`Self::run`].
    ///
    /// # Safety
    ///
    /// As for [`Self::run`].
    pub unsafe fn run_watched(&self) -> Result<(), LaunchError> {
        let blocks = Blocks::default();
        self.run_all(|| Block::watched(self, &blocks))
    }

    fn run_all<'l>(
        &'l self,
        block: impl Fn() -> Result<Block<'l>, LaunchError> + Sync,
    ) -> Result<(), LaunchError> {
        let blocks = self.blocks();
        let processors = thread::available_parallelism().map_or(1, NonZero::get);
        let threads = (blocks / BLOCKS_PER_THREAD).clamp(1, processors as u64);
        let next = AtomicU64::new(0);
        let failed = Mutex::new(None);
        let work = || {
            if let Err(error) = block().and_then(|block| self.work(block, &next, blocks)) {
                next.store(blocks, Ordering::Relaxed);
                lock(&failed).get_or_insert(error);
            }
        };
        thread::scope(|scope| {
            for _ in 1..threads {
                // If no thread can be started, this one does the work.
                let _ = thread::Builder::new().spawn_scoped(scope, work);
            }
            work();
        });
        let error = lock(&failed).take();
        error.map_or(Ok(()), Err)
    }

    /// Runs `most` of the blocks, spread over the grid, or all if there are fewer, and counts their
    /// work.
    ///
    /// # Errors
    ///
    /// Returns the first fault of a block.
    ///
    /// # Safety
    ///
    /// As for [`Self::run`].
    pub unsafe fn run_counted(&self, most: u64) -> Result<Counts, LaunchError> {
        let blocks = self.blocks();
        let count = blocks.min(most);
        let numbers = (0..count).map(|n| self.number(n * (blocks - 1) / (count - 1).max(1)));
        let counted = Block::new(self)?.run_counted(numbers);
        counted.map_err(|failure| LaunchError::Failed(Box::new(failure)))
    }

    /// Returns the blocks of the grid.
    pub fn blocks(&self) -> u64 {
        self.grid.iter().map(|&n| u64::from(n)).product()
    }

    /// Returns the place of a block in the grid.
    fn number(&self, block: u64) -> [u32; 3] {
        let [x, y, _] = self.grid.map(u64::from);
        [block % x, block / x % y, block / (x * y)].map(|n| n as u32)
    }

    /// Runs blocks until none are left.
    fn work(&self, mut block: Block<'_>, next: &AtomicU64, blocks: u64) -> Result<(), LaunchError> {
        loop {
            let number = next.fetch_add(1, Ordering::Relaxed);
            if number >= blocks {
                return Ok(());
            }
            let run = block.run(self.number(number));
            run.map_err(|failure| LaunchError::Failed(Box::new(failure)))?;
        }
    }

    pub(super) fn memory(&self, parameters: Range, shared: Range) -> Memory<'_> {
        // SAFETY: a launch only comes here from `run`, whose caller guarantees the conditions for
        // the device's memory; the others are buffers of the block, which uses them in one thread.
        unsafe { Memory::new(self.device, parameters, shared) }
    }

    /// Returns the threads of a block.
    pub(super) fn threads(&self) -> usize {
        self.block.iter().map(|&n| n as usize).product()
    }

    /// Returns a lane's value of a special register other than the block's number.
    pub(super) fn special(&self, special: Special, warp: usize, lane: usize) -> u64 {
        let [x, y, _] = self.block.map(|n| n as usize);
        let thread = warp * super::lanes::LANES + lane;
        let below = (1u64 << lane) - 1;
        let up_to = below << 1 | 1;
        let all = 0xffff_ffff;
        match special {
            Special::Thread(axis) => [thread % x, thread / x % y, thread / (x * y)][axis] as u64,
            Special::Threads(axis) => self.block[axis].into(),
            Special::Block(_) => 0,
            Special::Blocks(axis) => self.grid[axis].into(),
            Special::Lane => lane as u64,
            Special::Warp => warp as u64,
            Special::Warps => self.threads().div_ceil(super::lanes::LANES) as u64,
            Special::LanesEqual => 1 << lane,
            Special::LanesBelow => below,
            Special::LanesUpTo => up_to,
            Special::LanesAbove => all & !up_to,
            Special::LanesFrom => all & !below,
            Special::DynamicShared => self.dynamic_shared as u64,
            Special::Always(value) => value,
        }
    }
}
