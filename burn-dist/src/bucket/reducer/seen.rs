//! Reduced gradients for those who look at them, or change them, before the optimizer has them.

use std::ops::Range;

use burn::tensor::{Device, FloatDType, Shape, Tensor};

use super::Reducer;
use super::state::{Memory, State};
use crate::bucket::error::BucketError;
use crate::bucket::resident::assemble;
use crate::bucket::storage::{self, Arrival};
use crate::{Buffer, ReduceOp};

impl Reducer {
    /// Euclidean norms of the reduced gradients, by parameter; none where no rank had one. The same bits on every rank.
    /// A collective call.
    pub(crate) fn norms(&self) -> Result<Vec<Option<f64>>, BucketError> {
        let mut state = self.lock();
        let own = match self.resident {
            Some(_) => self.squares_there(&state),
            None => self.squares_here(&state),
        };
        let sums = own.and_then(|mut sums| {
            self.group.all_reduce::<f64>(&mut sums, ReduceOp::Sum)?;
            Ok(sums)
        });
        let sums = sums.map_err(|error| self.fail(&mut state, error))?;
        let norm = |(parameter, sum): (usize, f64)| marked(&state, parameter).then(|| sum.sqrt());
        Ok(sums.into_iter().enumerate().map(norm).collect())
    }

    /// Of every parameter, the sum of the squares of the gradient in this rank's shards.
    fn squares_here(&self, state: &State) -> Result<Vec<f64>, BucketError> {
        let own = |(parameter, own)| match self.reduced(state, parameter, Some(own)) {
            Some((buffer, place)) if marked(state, parameter) => {
                Ok(storage::sum_of_squares(buffer, &place)?)
            }
            _ => Ok(0.0),
        };
        self.shards.iter().enumerate().map(own).collect()
    }

    fn squares_there(&self, state: &State) -> Result<Vec<f64>, BucketError> {
        let all: Vec<usize> = (0..self.parameters.len()).collect();
        let mut squares = vec![0.0; all.len()];
        let parts = self.parts_there(state, &all, &self.shards);
        let (at, sums): (Vec<usize>, Vec<Tensor<1>>) = parts
            .into_iter()
            .enumerate()
            .filter_map(|(at, part)| Some((at, part?.cast(FloatDType::F32))))
            // Not `sum`, which adds atomically on CUDA, and so in another order each time.
            .map(|(at, part)| (at, part.clone().mul(part).sum_dim(0)))
            .unzip();
        if sums.is_empty() {
            return Ok(squares);
        }
        // One read for all of them.
        let read = Tensor::cat(sums, 0).try_into_data();
        let read = read.map_err(|error| BucketError::Read {
            path: "all parameters".to_owned(),
            reason: error.to_string(),
        })?;
        for (at, sum) in at.into_iter().zip(read.iter::<f64>()) {
            squares[at] = sum;
        }
        Ok(squares)
    }

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
            if owned.is_empty() || !marked(state, parameter) {
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
            false => Err(self.not_as_it_was(
                parameter,
                place.len(),
                changed.num_elements(),
                format!("{:?}", changed.dtype()),
            )),
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
            let dtype = format!("{:?}", changed.dtype());
            return Err(self.not_as_it_was(parameter, len, found, dtype));
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

    fn not_as_it_was(
        &self,
        parameter: usize,
        expected_len: usize,
        found_len: usize,
        found: String,
    ) -> BucketError {
        let spec = &self.parameters[parameter];
        BucketError::Mismatch {
            path: spec.path.clone(),
            expected_len,
            expected: spec.dtype,
            found_len,
            found,
        }
    }
}

/// Whether any rank had a gradient for a parameter.
fn marked(state: &State, parameter: usize) -> bool {
    state.marks.get(parameter).is_some_and(|mark| *mark != 0)
}
