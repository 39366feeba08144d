//! Replaces reduced gradients by what a user makes of them, before the optimizer has them.

use std::ops::Range;

use burn::tensor::{Device, Shape, Tensor};

use super::Reducer;
use super::state::{Memory, State};
use crate::Buffer;
use crate::bucket::error::BucketError;
use crate::bucket::resident::assemble;
use crate::bucket::storage::{self, Arrival};

impl Reducer {
    /// Replaces what this rank owns of every parameter's reduced gradient by what `change` makes of it. Gradients that
    /// are in host memory become tensors on `device`.
    pub(crate) fn change(
        &self,
        device: &Device,
        mut change: impl FnMut(usize, Range<usize>, Tensor<1>) -> Tensor<1>,
    ) -> Result<(), BucketError> {
        let mut state = self.lock();
        let mut changed = |state: &mut State, parameter: usize| {
            let owned = self.owned.get(parameter).cloned().unwrap_or(0..0);
            if owned.is_empty() || !state.is_marked(parameter) {
                return Ok(());
            }
            let change = |gradient| change(parameter, owned.clone(), gradient);
            match self.resident {
                Some(_) => self.change_there(state, parameter, change),
                None => self.change_here(state, parameter, device, change),
            }
        };
        let outcome = (0..self.parameters.len()).try_for_each(|at| changed(&mut state, at));
        outcome.map_err(|error| self.fail(&mut state, error))
    }

    fn change_here(
        &self,
        state: &mut State,
        parameter: usize,
        device: &Device,
        change: impl FnOnce(Tensor<1>) -> Tensor<1>,
    ) -> Result<(), BucketError> {
        let owned = self.owned.get(parameter);
        let Some((buffer, place)) = self.reduced(state, parameter, owned) else {
            return Ok(());
        };
        let shape = Shape::from([place.len()]);
        let Some(gradient) = storage::read(buffer, &place, &shape)? else {
            return Ok(());
        };
        let dtype = gradient.dtype();
        let changed = change(Tensor::from_data(gradient, (device, dtype)));
        let changed = changed.try_into_data().map_err(|error| BucketError::Read {
            path: self.parameters[parameter].path.clone(),
            reason: error.to_string(),
        })?;
        let Some(buffer) = self.reduced_mut(state, parameter) else {
            return Ok(());
        };
        match storage::put(buffer, &place, &changed, Arrival::First)? {
            true => Ok(()),
            false => {
                let found = (changed.num_elements(), changed.dtype());
                Err(BucketError::mismatch(
                    &self.parameters[parameter],
                    place.len(),
                    found,
                ))
            }
        }
    }

    fn change_there(
        &self,
        state: &mut State,
        parameter: usize,
        change: impl FnOnce(Tensor<1>) -> Tensor<1>,
    ) -> Result<(), BucketError> {
        let mut part = self.parts_there(state, &[parameter], &self.owned);
        let Some(part) = part.pop().flatten() else {
            return Ok(());
        };
        let (len, dtype) = (part.shape().num_elements(), part.dtype());
        let changed = change(part);
        let found = changed.shape().num_elements();
        if found != len || changed.dtype() != dtype {
            let found = (found, changed.dtype());
            return Err(BucketError::mismatch(
                &self.parameters[parameter],
                len,
                found,
            ));
        }
        let (Some(&(bucket, slot)), Some(place)) =
            (self.places.get(parameter), self.own_place(parameter))
        else {
            return Ok(());
        };
        let start = self.shard_of(bucket).start;
        let there = &mut state.buckets[bucket].there;
        if self.keeps_alone() {
            there.parts.replace(slot, changed);
        } else if let Some(mean) = there.mean.take() {
            there.mean = Some(assemble(mean, [(place, changed)]));
        } else if let Some(shard) = there.shard.take() {
            let place = place.start - start..place.end - start;
            there.shard = Some(assemble(shard, [(place, changed)]));
        }
        Ok(())
    }

    /// Where the reduced gradient of a parameter lies in host memory.
    fn reduced_mut<'s>(&self, state: &'s mut State, parameter: usize) -> Option<&'s mut Buffer> {
        let (index, _) = self.place(parameter)?;
        let bucket = state.buckets.get_mut(index)?;
        match (&mut bucket.shard, &mut bucket.memory) {
            (Some(own), _) => Some(&mut own.buffer),
            (None, Memory::Here(buffer)) => Some(buffer),
            _ => None,
        }
    }
}
