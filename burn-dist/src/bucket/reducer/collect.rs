//! Puts gradients from the hooks into their places in the buckets during backward.

use std::sync::atomic::Ordering;

use burn::tensor::Tensor;

use super::{Health, Phase, Reducer, State};
use crate::autograd::GradientSink;
use crate::bucket::error::BucketError;

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
            self.state.lock().phase,
            Phase::Accumulating | Phase::Sending { .. }
        )
    }

    fn collect(&self, parameter: usize, gradient: Tensor<1>) {
        let last_use = self
            .uses
            .get(parameter)
            .is_some_and(|uses| uses.load(Ordering::Acquire) == 1);
        let mut state = self.state.lock();
        if !matches!(state.health, Health::Good) {
            return;
        }
        if let Err(error) = self.receive(&mut state, parameter, gradient, last_use) {
            state.health = Health::Failing(error);
        }
    }

    fn panicked(&self, parameter: usize, reason: &str) {
        let spec = self.partition.parameters.get(parameter);
        let path = spec.map_or_else(String::new, |spec| spec.path.clone());
        let mut state = self.state.lock();
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
        let Some((bucket, _)) = self.partition.place_of(parameter) else {
            return Ok(());
        };
        if state.is_sent(bucket) {
            let spec = &self.partition.parameters[parameter];
            return Err(BucketError::Late {
                path: spec.path.clone(),
            });
        }
        // The bucket may still be in flight from the previous backward.
        self.arrive(state, bucket)?;
        let gradient = match state.scale {
            Some(scale) => gradient.mul_scalar(scale),
            None => gradient,
        };
        state.store.put(parameter, gradient)?;
        if let Some(mark) = state.marks.get_mut(parameter) {
            *mark = 1;
        }
        if last_use && matches!(state.phase, Phase::Sending { .. }) {
            self.complete(state, parameter)?;
        }
        Ok(())
    }
}
