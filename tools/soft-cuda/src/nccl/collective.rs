//! Collectives between ranks. Each rank writes its piece to its slot, waits for the others, and
//! copies what it needs from their slots. It locks the device memory per piece, not while it waits.
#![allow(unsafe_code)] // Copies between device memory and slots.

use std::ptr::with_exposed_provenance_mut;

use super::error::{Code, Error};
use super::reduce::{Operation, Type, reduce};
use super::shared::{SLOT, Shared};
use crate::driver::table::{self, Table};

/// Kind of the collective.
#[derive(Clone, Copy, Debug)]
pub(super) enum Collective {
    AllReduce(Operation),
    ReduceScatter(Operation),
    AllGather,
    Broadcast { root: usize },
    Reduce(Operation, usize),
}

/// One rank's call.
#[derive(Clone, Copy, Debug)]
pub(super) struct Job {
    pub collective: Collective,
    /// Device memory.
    pub from: u64,
    pub to: u64,
    /// Number of elements; of each rank's part, if there are parts.
    pub count: usize,
    pub kind: Type,
}

/// Elements of a job that are processed at once.
#[derive(Clone, Copy)]
struct Piece {
    first: usize,
    count: usize,
}

impl Job {
    /// Refuses invalid root ranks, and buffers outside device memory.
    pub fn check(&self, size: usize, rank: usize) -> Result<(), Error> {
        use Collective::{AllGather, AllReduce, Broadcast, Reduce, ReduceScatter};
        let (mut sent, mut received) = (Some(self.count), Some(self.count));
        match self.collective {
            Broadcast { root } | Reduce(_, root) if root >= size => {
                return Err(Error::argument(format!("root {root} of {size} ranks")));
            }
            // The source or destination of the other ranks is unused.
            Broadcast { root } if root != rank => sent = Some(0),
            Reduce(_, root) if root != rank => received = Some(0),
            AllGather => received = self.count.checked_mul(size),
            ReduceScatter(_) => sent = self.count.checked_mul(size),
            AllReduce(_) | Broadcast { .. } | Reduce(..) => {}
        }
        let table = table::read();
        self.check_buffer(&table, "source", self.from, sent)?;
        self.check_buffer(&table, "target", self.to, received)
    }

    fn check_buffer(
        &self,
        table: &Table,
        name: &str,
        address: u64,
        count: Option<usize>,
    ) -> Result<(), Error> {
        let bytes = count.and_then(|count| count.checked_mul(self.kind.size()));
        let valid = bytes.is_some_and(|bytes| bytes == 0 || table.check(address, bytes).is_ok());
        if valid {
            return Ok(());
        }
        Err(Error::argument(format!(
            "its {name}, {} elements of {:?} at {address:#x}, is not within device memory",
            count.map_or("too many".to_owned(), |count| count.to_string()),
            self.kind,
        )))
    }

    /// Executes it together with the other ranks.
    pub fn run(&self, shared: &Shared) -> Result<(), Error> {
        let most = self.elements_at_once(shared);
        for first in (0..self.count).step_by(most) {
            let piece = Piece {
                first,
                count: most.min(self.count - first),
            };
            self.give(shared, piece)?;
            shared.barrier()?;
            self.take(shared, piece)?;
            // Before this, no rank may write the next piece.
            shared.barrier()?;
        }
        Ok(())
    }

    /// Returns the elements that fit into a slot, or, if each rank gets different ones, those for
    /// each rank.
    fn elements_at_once(&self, shared: &Shared) -> usize {
        let in_slot = SLOT / self.kind.size();
        match self.collective {
            Collective::ReduceScatter(_) => in_slot / shared.size,
            _ => in_slot,
        }
    }

    fn give(&self, shared: &Shared, piece: Piece) -> Result<(), Error> {
        match self.collective {
            Collective::Broadcast { root } if root != shared.rank => Ok(()),
            Collective::ReduceScatter(_) => {
                let mut parts = 0..shared.size;
                parts.try_for_each(|part| self.give_part(shared, piece, part, part))
            }
            _ => self.give_part(shared, piece, 0, 0),
        }
    }

    /// Copies a piece of one of this rank's parts to a place in its slot.
    fn give_part(
        &self,
        shared: &Shared,
        piece: Piece,
        part: usize,
        place: usize,
    ) -> Result<(), Error> {
        let table = table::read();
        let (from, bytes) = self.memory(&table, self.from, part, piece)?;
        let to = shared.slot(shared.rank, place * bytes, bytes);
        // SAFETY: the source is in device memory while the table is held, and the destination in
        // this rank's slot, which no rank reads before the barrier.
        unsafe { to.copy_from(from, bytes) };
        Ok(())
    }

    fn take(&self, shared: &Shared, piece: Piece) -> Result<(), Error> {
        match self.collective {
            Collective::AllReduce(operation) => self.reduce(shared, piece, operation, 0),
            Collective::Reduce(operation, root) if root == shared.rank => {
                self.reduce(shared, piece, operation, 0)
            }
            Collective::Reduce(..) => Ok(()),
            Collective::ReduceScatter(operation) => {
                self.reduce(shared, piece, operation, shared.rank)
            }
            Collective::AllGather => {
                let mut ranks = 0..shared.size;
                ranks.try_for_each(|rank| self.take_part(shared, piece, rank, rank))
            }
            Collective::Broadcast { root } => self.take_part(shared, piece, root, 0),
        }
    }

    /// Copies a rank's piece to one of the parts of the destination.
    fn take_part(
        &self,
        shared: &Shared,
        piece: Piece,
        rank: usize,
        part: usize,
    ) -> Result<(), Error> {
        let table = table::read();
        let (to, bytes) = self.memory(&table, self.to, part, piece)?;
        let from = shared.slot(rank, 0, bytes);
        // SAFETY: the destination is in device memory while the table is held, and the slot does
        // not change before the next barrier.
        unsafe { to.copy_from(from, bytes) };
        Ok(())
    }

    /// Reduces the pieces at a place in the ranks' slots to the destination's piece.
    fn reduce(
        &self,
        shared: &Shared,
        piece: Piece,
        operation: Operation,
        place: usize,
    ) -> Result<(), Error> {
        let table = table::read();
        let (to, bytes) = self.memory(&table, self.to, 0, piece)?;
        let ranks = 0..shared.size;
        let slots = ranks.map(|rank| shared.slot(rank, place * bytes, bytes).cast_const());
        let slots: Vec<_> = slots.collect();
        // SAFETY: the destination is in device memory while the table is held, and the slots do not
        // change before the next barrier.
        unsafe { reduce(self.kind, operation, to, &slots, piece.count) };
        Ok(())
    }

    /// Returns the place of a piece of a part of a buffer, valid while the table is held, and its
    /// bytes.
    fn memory(
        &self,
        table: &Table,
        buffer: u64,
        part: usize,
        piece: Piece,
    ) -> Result<(*mut u8, usize), Error> {
        let offset = (part * self.count + piece.first) * self.kind.size();
        let (start, bytes) = (buffer + offset as u64, piece.count * self.kind.size());
        let freed = |_| {
            let reason = format!("{bytes} bytes at {start:#x} were freed before they were used");
            Error::new(Code::UnhandledCuda, reason)
        };
        table.check(start, bytes).map_err(freed)?;
        Ok((with_exposed_provenance_mut(start as usize), bytes))
    }
}
