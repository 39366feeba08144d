//! What the step reads of the reduced gradients: their norm, a whole gradient, or the part of one that
//! this rank owns, from wherever the strategy keeps it.

use std::ops::Range;

use burn::tensor::{Shape, TensorData};

use super::Reducer;
use super::state::{Memory, State};
use crate::bucket::error::BucketError;
use crate::bucket::storage;
use crate::{Buffer, ReduceOp};

impl Reducer {
    /// Euclidean norm of all reduced gradients together; the same bits on every rank, and, where no
    /// parameter stays whole, whatever the ranks keep of the gradients. A collective call.
    pub(crate) fn norm(&self) -> Result<f64, BucketError> {
        let mut state = self.lock();
        let own = match self.resident {
            Some(_) => self.sum_of_squares_there(&state),
            None => self.sum_of_squares(&state),
        };
        own.and_then(|own| self.over_ranks(own))
            .map(f64::sqrt)
            .map_err(|error| self.fail(&mut state, error))
    }

    fn over_ranks(&self, own: f64) -> Result<f64, BucketError> {
        let mut sums = [own];
        self.group.all_reduce::<f64>(&mut sums, ReduceOp::Sum)?;
        Ok(sums[0])
    }

    /// Sum of the squares of the gradients in this rank's shards.
    fn sum_of_squares(&self, state: &State) -> Result<f64, BucketError> {
        let mut sum = 0.0;
        for slot in self.layouts.iter().flat_map(|layout| &layout.slots) {
            // Of its shards alone, where it has more: sums of the same parts have the same bits.
            let mine = self.shards.get(slot.parameter);
            if let Some((buffer, place)) = self.reduced(state, slot.parameter, mine) {
                sum += storage::sum_of_squares(buffer, &place)?;
            }
        }
        Ok(sum)
    }

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
        let norm = |(parameter, sum): (usize, f64)| state.is_marked(parameter).then(|| sum.sqrt());
        Ok(sums.into_iter().enumerate().map(norm).collect())
    }

    /// Of every parameter, the sum of the squares of the gradient in this rank's shards.
    fn squares_here(&self, state: &State) -> Result<Vec<f64>, BucketError> {
        let own = |(parameter, own)| match self.reduced(state, parameter, Some(own)) {
            Some((buffer, place)) if state.is_marked(parameter) => {
                Ok(storage::sum_of_squares(buffer, &place)?)
            }
            _ => Ok(0.0),
        };
        self.shards.iter().enumerate().map(own).collect()
    }

    /// Hands the reduced gradient of the elements that this rank owns of a parameter to `then`, as
    /// `f32`; not if no rank had one.
    pub(crate) fn with_owned(
        &self,
        parameter: usize,
        then: impl FnOnce(&[f32]),
    ) -> Result<(), BucketError> {
        let state = self.lock();
        if !state.is_marked(parameter) {
            return Ok(());
        }
        if let Some((buffer, place)) = self.reduced(&state, parameter, self.owned.get(parameter)) {
            let values = buffer.as_slice::<f32>().map_err(crate::Error::from)?;
            then(values.get(place).unwrap_or_default());
        }
        Ok(())
    }

    /// Where the reduced gradient of a `part` of a parameter lies, which this rank has.
    pub(super) fn reduced<'s>(
        &self,
        state: &'s State,
        parameter: usize,
        part: Option<&Range<usize>>,
    ) -> Option<(&'s Buffer, Range<usize>)> {
        let ((index, slot), part) = (self.place(parameter)?, part?);
        let start = slot.elements.start;
        let place = start + part.start..start + part.end;
        let bucket = state.buckets.get(index)?;
        match (&bucket.shard, &bucket.memory) {
            (Some(_), _) if place.is_empty() => None,
            (Some(own), _) => {
                let shift = self.shard_of(index).start;
                Some((&own.buffer, place.start - shift..place.end - shift))
            }
            (None, Memory::Here(buffer)) => Some((buffer, place)),
            _ => None,
        }
    }

    /// The reduced gradient of a parameter of which this rank keeps all in host memory, or `None` if no
    /// rank had one.
    pub(crate) fn gradient(
        &self,
        parameter: usize,
        shape: &Shape,
    ) -> Result<Option<TensorData>, BucketError> {
        let state = self.lock();
        let Some((bucket, slot)) = self.place(parameter) else {
            return Ok(None);
        };
        if !state.is_marked(parameter) {
            return Ok(None);
        }
        let Memory::Here(buffer) = &state.buckets[bucket].memory else {
            return Ok(None);
        };
        Ok(storage::read(buffer, &slot.elements, shape)?)
    }
}
