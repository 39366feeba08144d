//! The order of a step: backward once or several times, the wait for what is under way, and then
//! nothing is left of it.

use std::mem;
use std::sync::atomic::Ordering;

use super::state::{Health, Phase, State};
use super::{Gradients, Reducer};
use crate::ReduceOp;
use crate::bucket::error::BucketError;
use crate::bucket::storage::Arrival;

impl Reducer {
    /// Backward is about to run. In the `last` one of a step, full buckets are sent.
    pub(crate) fn begin_backward(&self, last: bool) -> Result<(), BucketError> {
        let mut state = self.lock();
        self.check(&mut state)?;
        match state.phase {
            Phase::Waiting => {}
            Phase::Accumulating | Phase::Sending { .. } => {
                return Err(BucketError::Order(
                    "backward was called while backward runs",
                ));
            }
            Phase::Sent | Phase::Reduced => {
                return Err(BucketError::Order(
                    "backward was called after the last micro-batch of a step: call step first",
                ));
            }
        }
        if !last && self.keep != Gradients::Sharded {
            state.phase = Phase::Accumulating;
            return Ok(());
        }
        state.phase = Phase::Sending { last };
        state.next = 0;
        state.complete.fill(false);
        for (bucket, layout) in state.buckets.iter_mut().zip(&self.layouts) {
            bucket.missing = layout.slots.len();
        }
        // What the graph does not use will not be heard of.
        let unused = |parameter: &usize| self.uses[*parameter].load(Ordering::Acquire) == 0;
        let completed = (0..self.parameters.len())
            .filter(unused)
            .try_for_each(|parameter| self.complete(&mut state, parameter));
        completed.map_err(|error| self.fail(&mut state, error))
    }

    /// Backward has returned.
    pub(crate) fn end_backward(&self) -> Result<(), BucketError> {
        let mut state = self.lock();
        self.check(&mut state)?;
        let Phase::Sending { last } = state.phase else {
            state.phase = Phase::Waiting;
            return Ok(());
        };
        let completed = (0..self.parameters.len())
            .try_for_each(|parameter| self.complete(&mut state, parameter));
        completed.map_err(|error| self.fail(&mut state, error))?;
        state.phase = if last { Phase::Sent } else { Phase::Waiting };
        Ok(())
    }

    /// Waits until all buckets hold the mean over ranks.
    pub(crate) fn wait(&self) -> Result<(), BucketError> {
        let mut state = self.lock();
        self.check(&mut state)?;
        if state.phase != Phase::Sent {
            return Err(BucketError::Order(
                "step was called before backward had run for every micro-batch",
            ));
        }
        let received = self.receive_all(&mut state);
        received.map_err(|error| self.fail(&mut state, error))?;
        state.phase = Phase::Reduced;
        Ok(())
    }

    fn receive_all(&self, state: &mut State) -> Result<(), BucketError> {
        for index in 0..self.layouts.len() {
            self.receive_bucket(state, index)?;
        }
        for index in 0..self.layouts.len() {
            self.receive_replica(state, index)?;
        }
        for group in [&self.group].into_iter().chain(&self.replicas) {
            group.all_reduce::<u8>(&mut state.marks, ReduceOp::Max)?;
        }
        Ok(())
    }

    /// The gradients have been used: the next backward begins a new step.
    pub(crate) fn reset(&self) {
        let mut state = self.lock();
        state.phase = Phase::Waiting;
        state.present.fill(false);
        state.marks.fill(0);
        for bucket in &mut state.buckets {
            bucket.there.parts.clear();
            bucket.there.mean = None;
            bucket.there.shard = None;
        }
        for own in state.buckets.iter_mut().filter_map(|b| b.shard.as_mut()) {
            own.arrival = Arrival::First;
        }
    }

    /// Reports an error from inside backward once, and refuses everything after it.
    fn check(&self, state: &mut State) -> Result<(), BucketError> {
        match mem::replace(&mut state.health, Health::Good) {
            Health::Good => Ok(()),
            Health::Failing(error) => Err(self.fail(state, error)),
            Health::Failed(reason) => {
                state.health = Health::Failed(reason.clone());
                Err(BucketError::Failed { reason })
            }
        }
    }

    /// Refuses everything after an error, and tells the other ranks of it: they wait for what will
    /// not come.
    pub(super) fn fail(&self, state: &mut State, error: BucketError) -> BucketError {
        let reason = error.to_string();
        if self.group.size() > 1 || self.replicas.is_some() {
            self.group.abort(&reason);
        }
        state.health = Health::Failed(reason);
        error
    }
}
