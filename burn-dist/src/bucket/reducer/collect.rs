//! What the gradient hooks bring during backward: puts every gradient into its place in its bucket.

use std::mem;
use std::sync::atomic::Ordering;

use burn::tensor::Tensor;

use super::Reducer;
use super::state::{Health, Memory, Phase, State};
use crate::autograd::GradientSink;
use crate::bucket::error::BucketError;
use crate::bucket::storage::{self, Arrival};

impl GradientSink for Reducer {
    fn used(&self, parameter: usize) {
        if let Some(uses) = self.uses.get(parameter) {
            uses.fetch_add(1, Ordering::AcqRel);
        }
    }

    fn released(&self, parameter: usize) {
        if let Some(uses) = self.uses.get(parameter) {
            uses.fetch_sub(1, Ordering::AcqRel);
        }
    }

    fn is_collecting(&self) -> bool {
        matches!(
            self.lock().phase,
            Phase::Accumulating | Phase::Sending { .. }
        )
    }

    fn collect(&self, parameter: usize, gradient: Tensor<1>) {
        let last_use = self
            .uses
            .get(parameter)
            .is_some_and(|uses| uses.load(Ordering::Acquire) == 1);
        let mut state = self.lock();
        if !matches!(state.health, Health::Good) {
            return;
        }
        if let Err(error) = self.receive(&mut state, parameter, gradient, last_use) {
            state.health = Health::Failing(error);
        }
    }

    fn panicked(&self, parameter: usize, reason: &str) {
        let path = self
            .parameters
            .get(parameter)
            .map_or_else(String::new, |spec| spec.path.clone());
        let mut state = self.lock();
        if matches!(state.health, Health::Good) {
            state.health = Health::Failing(BucketError::Panicked {
                path,
                reason: reason.to_owned(),
            });
        }
    }
}

impl Reducer {
    fn receive(
        &self,
        state: &mut State,
        parameter: usize,
        gradient: Tensor<1>,
        last_use: bool,
    ) -> Result<(), BucketError> {
        let Some((index, slot)) = self.place(parameter) else {
            return Ok(());
        };
        let spec = &self.parameters[parameter];
        if self.resident.is_some() {
            return self.receive_there(state, parameter, gradient, last_use);
        }
        let gradient = gradient
            .try_into_data()
            .map_err(|error| BucketError::Read {
                path: spec.path.clone(),
                reason: error.to_string(),
            })?;
        let arrival = if mem::replace(&mut state.present[parameter], true) {
            Arrival::Further
        } else {
            Arrival::First
        };
        if let Some(mark) = state.marks.get_mut(parameter) {
            *mark = 1;
        }
        if !state.complete[parameter] {
            // It may still be on its way from the backward before.
            self.receive_bucket(state, index)?;
        }
        let bucket = &mut state.buckets[index];
        if matches!(bucket.memory, Memory::None) && !state.complete[parameter] {
            bucket.memory = Memory::Here(self.new_memory(index));
        }
        let is_sent = matches!(state.phase, Phase::Sending { .. }) && index < state.next;
        let (Memory::Here(buffer), false) = (&mut bucket.memory, is_sent) else {
            return Err(BucketError::Late {
                path: spec.path.clone(),
            });
        };
        if !storage::put(buffer, &slot.elements, &gradient, arrival)? {
            let found = (gradient.num_elements(), gradient.dtype());
            return Err(BucketError::mismatch(spec, spec.num_elements(), found));
        }
        if last_use && matches!(state.phase, Phase::Sending { .. }) {
            self.complete(state, parameter)?;
        }
        Ok(())
    }
}
