//! The phases of a step: one or more backward passes, which send full buckets in their layout's
//! order; the wait for buckets in flight; and the reset.

use std::mem;
use std::sync::atomic::Ordering;

use super::{Health, Phase, Reducer, State};
use crate::ReduceOp;
use crate::bucket::agreement::{Agreed, Agreement};
use crate::bucket::error::BucketError;
use crate::bucket::partition::KeptGradients;

/// Largest number of buckets in flight if their memory is freed on arrival.
const IN_FLIGHT: usize = 2;

impl Reducer {
    /// Begins a backward. The `last` one of a step sends full buckets.
    pub(crate) fn begin_backward(&self, last: bool) -> Result<(), BucketError> {
        let mut state = self.state.lock();
        if !self.begin(&mut state, last)? {
            return Ok(());
        }
        // Hooks do not report parameters that the graph does not use.
        let unused = |parameter: &usize| self.uses[*parameter].load(Ordering::Acquire) == 0;
        let completed = (0..self.uses.len())
            .filter(unused)
            .try_for_each(|parameter| self.complete(&mut state, parameter));
        completed.map_err(|error| self.fail(&mut state, error))
    }

    /// Begins a backward before the forward pass that its graph is made in. Its gradients are
    /// multiplied by `scale`.
    ///
    /// No parameter has a use yet. So unused parameters are complete only when backward ends, and
    /// their buckets hold back later ones.
    pub(crate) fn begin_forward(&self, last: bool, scale: Option<f64>) -> Result<(), BucketError> {
        let mut state = self.state.lock();
        self.begin(&mut state, last)?;
        state.scale = scale;
        Ok(())
    }

    /// Enters the phase of a backward. Returns whether it sends buckets.
    fn begin(&self, state: &mut State, last: bool) -> Result<bool, BucketError> {
        self.check(state)?;
        match state.phase {
            Phase::Waiting => {}
            Phase::Accumulating | Phase::Sending { .. } => {
                return Err(BucketError::Order(
                    "backward was called while another backward runs",
                ));
            }
            Phase::Sent | Phase::Reduced => {
                return Err(BucketError::Order(
                    "backward was called after the last micro-batch of the step; call step first",
                ));
            }
        }
        if !last && self.partition.keep != KeptGradients::Sharded {
            state.phase = Phase::Accumulating;
            return Ok(false);
        }
        state.phase = Phase::Sending { last };
        state.next = 0;
        state.complete.fill(false);
        let layouts = self.partition.layouts.iter();
        state.missing = layouts.map(|layout| layout.slots.len()).collect();
        Ok(true)
    }

    /// Ends a backward.
    pub(crate) fn end_backward(&self) -> Result<(), BucketError> {
        let mut state = self.state.lock();
        self.check(&mut state)?;
        state.scale = None;
        let Phase::Sending { last } = state.phase else {
            state.phase = Phase::Waiting;
            return Ok(());
        };
        let completed =
            (0..self.uses.len()).try_for_each(|parameter| self.complete(&mut state, parameter));
        completed.map_err(|error| self.fail(&mut state, error))?;
        state.phase = if last { Phase::Sent } else { Phase::Waiting };
        Ok(())
    }

    /// The gradients of the next backward passes are those of this rank's next virtual rank.
    pub(crate) fn end_virtual_rank(&self) -> Result<(), BucketError> {
        let mut state = self.state.lock();
        self.check(&mut state)?;
        let ended = state.store.end_virtual_rank();
        ended.map_err(|error| self.fail(&mut state, error))
    }

    /// Waits until all buckets hold the mean over ranks. Returns what all ranks `said`.
    pub(crate) fn wait(&self, said: &Agreement) -> Result<Agreed, BucketError> {
        let mut state = self.state.lock();
        self.check(&mut state)?;
        if state.phase != Phase::Sent {
            return Err(BucketError::Order(
                "step was called before backward ran for every micro-batch",
            ));
        }
        let received = self.receive_all(&mut state, said.bytes());
        let said = received.map_err(|error| self.fail(&mut state, error))?;
        state.phase = Phase::Reduced;
        Ok(Agreed::of(&said))
    }

    /// Whether any rank had a gradient for any parameter, after [`wait`](Self::wait).
    pub(crate) fn has_gradients(&self) -> bool {
        self.state.lock().marks.iter().any(|mark| *mark != 0)
    }

    /// Waits for all gradients, and determines the parameters with a gradient on any rank. Returns
    /// the maximum over ranks of `say`.
    fn receive_all(&self, state: &mut State, say: &[u8]) -> Result<Vec<u8>, BucketError> {
        for index in 0..self.layouts().len() {
            self.arrive(state, index)?;
        }
        for index in 0..self.layouts().len() {
            state.store.arrive_replicated(index)?;
        }
        let mut all = [&state.marks[..], say].concat();
        let partition = &self.partition;
        for group in [&partition.group].into_iter().chain(&partition.replicas) {
            group.all_reduce::<u8>(&mut all, ReduceOp::Max)?;
        }
        let said = all.split_off(state.marks.len());
        state.marks = all;
        Ok(said)
    }

    /// Drops the gradients of the current step. Every rank calls it after the same backward.
    pub(crate) fn discard(&self) -> Result<(), BucketError> {
        let mut state = self.state.lock();
        self.check(&mut state)?;
        let received = match state.phase {
            Phase::Accumulating | Phase::Sending { .. } => {
                return Err(BucketError::Order("discard was called while backward runs"));
            }
            Phase::Sent => self.receive_all(&mut state, &[]).map(drop),
            // Buckets of earlier micro-batches may be in flight.
            Phase::Waiting | Phase::Reduced => {
                (0..self.layouts().len()).try_for_each(|index| self.arrive(&mut state, index))
            }
        };
        received.map_err(|error| self.fail(&mut state, error))?;
        drop(state);
        self.reset();
        Ok(())
    }

    /// Marks the gradients as used: the next backward begins a new step.
    pub(crate) fn reset(&self) {
        let mut state = self.state.lock();
        state.phase = Phase::Waiting;
        state.marks.fill(0);
        state.store.reset();
    }

    /// Marks a parameter as complete, and sends full buckets that are next in order.
    pub(super) fn complete(&self, state: &mut State, parameter: usize) -> Result<(), BucketError> {
        let Some((bucket, _)) = self.partition.place_of(parameter) else {
            return Ok(());
        };
        if mem::replace(&mut state.complete[parameter], true) {
            return Ok(());
        }
        state.missing[bucket] -= 1;
        while state.missing.get(state.next) == Some(&0) {
            self.send(state, state.next)?;
            state.next += 1;
        }
        Ok(())
    }

    /// Sends a bucket. Waits for buckets that were sent long before.
    fn send(&self, state: &mut State, index: usize) -> Result<(), BucketError> {
        self.arrive(state, index)?;
        state.store.send(index)?;
        let keep = self.partition.keep;
        if keep == KeptGradients::Sharded || self.partition.replicas.is_some() {
            for earlier in 0..(index + 1).saturating_sub(IN_FLIGHT) {
                self.arrive(state, earlier)?;
            }
        }
        if keep == KeptGradients::Scattered {
            // Copies of shards that have yet to return.
            for earlier in 0..(index + 1).saturating_sub(2 * IN_FLIGHT) {
                state.store.arrive_replicated(earlier)?;
            }
        }
        Ok(())
    }

    /// Waits for a bucket in flight. On its last arrival in this step, its shard goes on to the
    /// mean over replicas.
    pub(super) fn arrive(&self, state: &mut State, index: usize) -> Result<(), BucketError> {
        if !state.store.arrive(index)? {
            return Ok(());
        }
        let is_last = match state.phase {
            Phase::Sending { last } => last && state.is_sent(index),
            phase => phase == Phase::Sent,
        };
        match is_last {
            true => state.store.replicate(index),
            false => Ok(()),
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

    /// Refuses everything from now on, for a reason that all ranks have seen.
    pub(crate) fn refuse(&self, reason: &str) {
        self.state.lock().health = Health::Failed(reason.to_owned());
    }

    /// Refuses everything after an error and tells the other ranks, which would wait.
    pub(super) fn fail(&self, state: &mut State, error: BucketError) -> BucketError {
        let reason = error.to_string();
        let partition = &self.partition;
        if partition.group.size() > 1 || partition.replicas.is_some() {
            partition.group.abort(&reason);
        }
        state.health = Health::Failed(reason);
        error
    }
}
