//! Buckets on their way: sends them in their layout's order as soon as they are full, and takes in
//! what comes back.

use std::mem;

use super::state::{Memory, State};
use super::{Gradients, Reducer};
use crate::bucket::error::BucketError;
use crate::bucket::storage::{self, Arrival};
use crate::{Buffer, ReduceOp};

/// Buckets on their way at a time, where their memory is given back on arrival.
const IN_FLIGHT: usize = 2;

impl Reducer {
    /// Nothing more is expected for a parameter: sends what is full and next in order.
    pub(super) fn complete(&self, state: &mut State, parameter: usize) -> Result<(), BucketError> {
        let Some((index, _)) = self.place(parameter) else {
            return Ok(());
        };
        if mem::replace(&mut state.complete[parameter], true) {
            return Ok(());
        }
        state.buckets[index].missing -= 1;
        while let Some(bucket) = state.buckets.get_mut(state.next)
            && bucket.missing == 0
        {
            self.send(state, state.next)?;
            state.next += 1;
        }
        Ok(())
    }

    /// Memory for a bucket, of arbitrary contents: every slot is written or cleared before the bucket
    /// is sent, and the padding between slots is never looked at.
    pub(super) fn new_memory(&self, bucket: usize) -> Buffer {
        let layout = &self.layouts[bucket];
        Buffer::recycled(layout.dtype, layout.len).compress(self.compression)
    }

    /// Sends a bucket; what is missing in it is zero. Waits for those that were sent long before.
    fn send(&self, state: &mut State, index: usize) -> Result<(), BucketError> {
        self.receive_bucket(state, index)?;
        match self.resident {
            Some(_) => self.send_there(state, index),
            None => self.send_here(state, index)?,
        }
        if self.keep == Gradients::Sharded || self.replicas.is_some() {
            for earlier in 0..(index + 1).saturating_sub(IN_FLIGHT) {
                self.receive_bucket(state, earlier)?;
            }
        }
        if self.keep == Gradients::Scattered {
            // Copies of shards that have yet to return.
            for earlier in 0..(index + 1).saturating_sub(2 * IN_FLIGHT) {
                self.receive_replica(state, earlier)?;
            }
        }
        Ok(())
    }

    fn send_here(&self, state: &mut State, index: usize) -> Result<(), BucketError> {
        let layout = &self.layouts[index];
        let bucket = &mut state.buckets[index];
        let mut buffer = match mem::replace(&mut bucket.memory, Memory::Lost) {
            Memory::Here(buffer) => buffer,
            Memory::None => self.new_memory(index),
            other => {
                bucket.memory = other;
                return Ok(());
            }
        };
        for slot in &layout.slots {
            if !state.present[slot.parameter] {
                storage::clear(&mut buffer, &slot.elements)?;
            }
        }
        let buffer = buffer.numbered(self.number(index));
        bucket.memory = match self.keep {
            Gradients::Whole if self.group.size() == 1 => Memory::Here(buffer),
            Gradients::Whole => {
                Memory::Travelling(self.group.start_all_reduce(buffer, ReduceOp::Mean))
            }
            _ => {
                let buffer = buffer.cut(layout.cuts.clone());
                Memory::Travelling(self.group.start_reduce_scatter(buffer, ReduceOp::Mean))
            }
        };
        if self.keep == Gradients::Sharded {
            // The next backward of the step begins with empty places.
            for slot in &layout.slots {
                state.present[slot.parameter] = false;
            }
        }
        Ok(())
    }

    /// Waits for a bucket that is on its way, and takes its shard out if nothing else is kept.
    pub(super) fn receive_bucket(
        &self,
        state: &mut State,
        index: usize,
    ) -> Result<(), BucketError> {
        if self.resident.is_some() {
            return self.receive_bucket_there(state, index);
        }
        let Some(bucket) = state.buckets.get_mut(index) else {
            return Ok(());
        };
        let buffer = match mem::replace(&mut bucket.memory, Memory::Lost) {
            Memory::Travelling(handle) => handle.wait()?,
            other => {
                bucket.memory = other;
                return Ok(());
            }
        };
        bucket.memory = match &mut bucket.shard {
            None => Memory::Here(buffer),
            Some(own) => {
                let part = self.shard_of(index);
                storage::take_shard(&mut own.buffer, &buffer, &part, own.arrival)?;
                own.arrival = Arrival::Further;
                Memory::None
            }
        };
        self.replicate(state, index)
    }
}
