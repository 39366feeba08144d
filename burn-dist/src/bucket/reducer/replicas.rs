//! The second mean, where several sets of ranks have all shards once each: a shard that has arrived
//! for the last time in a step goes on to the ranks that have the same one, while backward still runs.

use std::mem;

use super::Reducer;
use super::state::{Memory, Phase, State};
use crate::bucket::error::BucketError;
use crate::bucket::storage::{self, Arrival};
use crate::{Buffer, DType, ReduceOp};

impl Reducer {
    /// Sends the shard of a bucket that has arrived for the last time in this step on to the mean over
    /// replicas.
    pub(super) fn replicate(&self, state: &mut State, index: usize) -> Result<(), BucketError> {
        let is_last = match state.phase {
            Phase::Sending { last } => last && index < state.next,
            phase => phase == Phase::Sent,
        };
        if is_last && self.resident.is_some() {
            self.replicate_there(state, index);
            return Ok(());
        }
        let replicas = self.replicas.as_ref().filter(|_| is_last);
        let (Some(replicas), Some(bucket)) = (replicas, state.buckets.get_mut(index)) else {
            return Ok(());
        };
        let own = match (&mut bucket.shard, &bucket.memory) {
            (Some(own), _) => mem::replace(&mut own.buffer, Buffer::zeroed(DType::F32, 0)),
            (None, Memory::Here(buffer)) => {
                let part = self.shard_of(index);
                let own = Buffer::zeroed(buffer.dtype(), part.len());
                let mut own = own.compress(self.compression);
                storage::take_shard(&mut own, buffer, &part, Arrival::First)?;
                own
            }
            _ => return Ok(()),
        };
        bucket.replicating = Some(replicas.start_all_reduce(own, ReduceOp::Mean));
        Ok(())
    }

    /// Waits for a shard that is on its way to the mean over replicas.
    pub(super) fn receive_replica(
        &self,
        state: &mut State,
        index: usize,
    ) -> Result<(), BucketError> {
        if self.resident.is_some() {
            return self.receive_replica_there(state, index);
        }
        let Some(bucket) = state.buckets.get_mut(index) else {
            return Ok(());
        };
        let Some(handle) = bucket.replicating.take() else {
            return Ok(());
        };
        let mean = handle.wait()?;
        match (&mut bucket.shard, &mut bucket.memory) {
            (Some(own), _) => own.buffer = mean,
            (None, Memory::Here(buffer)) => {
                storage::give_shard(&mean, buffer, &self.shard_of(index))?;
            }
            _ => {}
        }
        Ok(())
    }
}
