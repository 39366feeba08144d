//! The memory of all devices. Kernels and copies hold the table for reading, so that memory they
//! access is not freed.

use std::collections::BTreeMap;
use std::sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use super::Error;
use crate::machine::{Buffer, Range};
use crate::settings::settings;

/// The part of the driver that may free an allocation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Owner {
    Program,
    /// A variable of a module.
    Module,
}

struct Allocation {
    buffer: Buffer,
    device: usize,
    owner: Owner,
}

/// Allocations by their addresses.
pub(crate) struct Table {
    allocations: BTreeMap<u64, Allocation>,
}

static TABLE: RwLock<Table> = RwLock::new(Table {
    allocations: BTreeMap::new(),
});

/// Locks the table for reading: nothing changes meanwhile.
pub(crate) fn read() -> RwLockReadGuard<'static, Table> {
    TABLE.read().unwrap_or_else(PoisonError::into_inner)
}

/// Locks the table for writing, while no kernel runs.
pub(super) fn write() -> RwLockWriteGuard<'static, Table> {
    TABLE.write().unwrap_or_else(PoisonError::into_inner)
}

impl Table {
    /// Allocates memory of a device that starts with these bytes.
    pub fn add(
        &mut self,
        device: usize,
        owner: Owner,
        bytes: usize,
        content: &[u8],
    ) -> Result<u64, Error> {
        if bytes == 0 {
            return Err(Error::InvalidValue);
        }
        if bytes as u64 > self.free(device) {
            return Err(Error::OutOfMemory);
        }
        let buffer = match settings().idle {
            true => Buffer::zeros(bytes),
            false => Buffer::new(bytes),
        };
        let mut buffer = buffer.ok_or(Error::OutOfMemory)?;
        buffer.write(content);
        let start = buffer.range().start;
        let allocation = Allocation {
            buffer,
            device,
            owner,
        };
        self.allocations.insert(start, allocation);
        Ok(start)
    }

    pub fn remove(&mut self, start: u64, owner: Owner) -> Result<(), Error> {
        match self.allocations.get(&start) {
            Some(allocation) if allocation.owner == owner => {
                self.allocations.remove(&start);
                Ok(())
            }
            _ => Err(Error::InvalidValue),
        }
    }

    /// Returns the used bytes of a device.
    pub fn used(&self, device: usize) -> u64 {
        let of_device = self.allocations.values().filter(|a| a.device == device);
        let bytes = of_device.map(|a| a.buffer.range()).map(|r| r.end - r.start);
        bytes.sum()
    }

    /// Returns the free bytes of a device.
    pub fn free(&self, device: usize) -> u64 {
        settings().memory.saturating_sub(self.used(device))
    }

    /// Refuses a range that is not within one allocation.
    pub fn check(&self, start: u64, bytes: usize) -> Result<(), Error> {
        let before = self.allocations.range(..=start).next_back();
        let inside = before.is_some_and(|(_, a)| a.buffer.range().holds(start, bytes));
        if inside {
            Ok(())
        } else {
            Err(Error::InvalidValue)
        }
    }

    /// Returns all allocations in ascending order.
    pub fn ranges(&self) -> Vec<Range> {
        self.allocations
            .values()
            .map(|a| a.buffer.range())
            .collect()
    }
}
