//! The order of a step: backward once or several times, the wait for what is under way, and then
//! nothing is left of it.

use std::mem;
use std::sync::atomic::Ordering;

use super::state::{Health, Phase, State};
use super::{Gradients, Reducer};
use crate::ReduceOp;
use crate::bucket::error::BucketError;
use crate::bucket::storage::Arrival;

/// Bytes that ranks compare when they wait for the gradients.
const SAID: usize = 8;

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

    /// Waits until all buckets hold the mean over ranks. Gives whether all ranks `said` the same.
    pub(crate) fn wait(&self, said: [u8; SAID]) -> Result<bool, BucketError> {
        let mut state = self.lock();
        self.check(&mut state)?;
        if state.phase != Phase::Sent {
            return Err(BucketError::Order(
                "step was called before backward had run for every micro-batch",
            ));
        }
        // The largest of a byte and of its complement are complements where all ranks have the same.
        let not = said.map(|byte| !byte);
        state.marks.extend(said.into_iter().chain(not));
        let received = self.receive_all(&mut state);
        received.map_err(|error| self.fail(&mut state, error))?;
        let all = state.marks.split_off(self.parameters.len());
        let (most, least) = all.split_at(SAID);
        state.phase = Phase::Reduced;
        Ok(most.iter().zip(least).all(|(most, not)| *most == !not))
    }

    /// Whether any rank had a gradient for any parameter, once they have been waited for.
    pub(crate) fn has_gradients(&self) -> bool {
        self.lock().marks.iter().any(|mark| *mark != 0)
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

    /// Drops the gradients of the step that is going on. Every rank makes this call after the same backward.
    pub(crate) fn discard(&self) -> Result<(), BucketError> {
        let mut state = self.lock();
        self.check(&mut state)?;
        let received = match state.phase {
            Phase::Accumulating | Phase::Sending { .. } => {
                return Err(BucketError::Order("discard was called while backward runs"));
            }
            Phase::Sent => self.receive_all(&mut state),
            // Of micro-batches before the last one buckets may be on their way.
            Phase::Waiting | Phase::Reduced => {
                (0..self.layouts.len()).try_for_each(|index| self.receive_bucket(&mut state, index))
            }
        };
        received.map_err(|error| self.fail(&mut state, error))?;
        drop(state);
        self.reset();
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

    /// Refuses everything from now on, because of what all ranks have seen.
    pub(crate) fn refuse(&self, reason: &str) {
        self.lock().health = Health::Failed(reason.to_owned());
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
