//! Gradients that stay on a device, from the hooks to the optimizer: what the other files do in host
//! memory, with tensors. Of a bucket only this rank's shard is left, unless all are kept.

use std::ops::Range;

use burn::tensor::Tensor;

use super::state::{Phase, State};
use super::{Gradients, Reducer};
use crate::bucket::error::BucketError;
use crate::bucket::layout::BucketLayout;
use crate::bucket::resident;
use crate::bucket::storage;

impl Reducer {
    /// Puts a gradient that a hook has brought into its place.
    pub(super) fn receive_there(
        &self,
        state: &mut State,
        parameter: usize,
        gradient: Tensor<1>,
        last_use: bool,
    ) -> Result<(), BucketError> {
        let spec = &self.parameters[parameter];
        let (bucket, slot) = self.places[parameter];
        let sending = matches!(state.phase, Phase::Sending { .. });
        if sending && state.complete[parameter] {
            return Err(BucketError::Late {
                path: spec.path.clone(),
            });
        }
        let (len, dtype) = (gradient.shape().num_elements(), gradient.dtype());
        if len != spec.num_elements() || storage::gradient_dtype(dtype) != Some(spec.dtype) {
            return Err(BucketError::Mismatch {
                path: spec.path.clone(),
                expected_len: spec.num_elements(),
                expected: spec.dtype,
                found_len: len,
                found: format!("{dtype:?}"),
            });
        }
        if let Some(mark) = state.marks.get_mut(parameter) {
            *mark = 1;
        }
        state.buckets[bucket].there.parts.add(slot, gradient);
        if last_use && sending {
            self.complete(state, parameter)?;
        }
        Ok(())
    }

    /// Sends a full bucket.
    pub(super) fn send_there(&self, state: &mut State, index: usize) {
        let (Some(resident), Some(layout)) = (&self.resident, self.layouts.get(index)) else {
            return;
        };
        if self.keeps_alone() {
            return;
        }
        let there = &mut state.buckets[index].there;
        let flat = there.parts.take_flat(layout, &resident.device);
        there.travelling = Some(match self.keep {
            Gradients::Whole => resident.within.start_mean(flat),
            _ => resident.within.start_mean_of_shard(flat, &layout.cuts),
        });
    }

    /// Waits for a bucket that is on its way.
    pub(super) fn receive_bucket_there(
        &self,
        state: &mut State,
        index: usize,
    ) -> Result<(), BucketError> {
        let travelling = state
            .buckets
            .get_mut(index)
            .map(|b| &mut b.there.travelling);
        let Some(handle) = travelling.and_then(Option::take) else {
            return Ok(());
        };
        let arrived = handle.wait()?;
        let there = &mut state.buckets[index].there;
        if self.keep == Gradients::Whole {
            there.mean = Some(arrived);
            return Ok(());
        }
        if self.shard_of(index).is_empty() {
            return Ok(());
        }
        there.shard = Some(match there.shard.take() {
            Some(sum) => sum.add(arrived),
            None => arrived,
        });
        self.replicate(state, index)
    }

    /// Sends the shard of a bucket on to the mean over replicas.
    pub(super) fn replicate_there(&self, state: &mut State, index: usize) {
        let across = self.resident.as_ref().and_then(|r| r.across.as_ref());
        let there = &mut state.buckets[index].there;
        if let Some(across) = across
            && let Some(shard) = there.shard.take()
        {
            there.replicating = Some(across.start_mean(shard));
        }
    }

    /// Waits for a shard that is on its way to the mean over replicas.
    pub(super) fn receive_replica_there(
        &self,
        state: &mut State,
        index: usize,
    ) -> Result<(), BucketError> {
        let there = &mut state.buckets[index].there;
        if let Some(handle) = there.replicating.take() {
            there.shard = Some(handle.wait()?);
        }
        Ok(())
    }

    /// Sum of the squares of the gradients in this rank's shards: of its shards alone, where it has
    /// more, since sums of the same parts have the same bits.
    pub(super) fn sum_of_squares_there(&self, state: &State) -> Result<f64, BucketError> {
        let all = || state.buckets.iter().map(|bucket| &bucket.there);
        let sum = match self.keeps_alone() {
            true => resident::sum_of_squares(all().flat_map(|there| there.parts.all()).cloned()),
            // Between its parts a shard is zero.
            false => resident::sum_of_squares(all().enumerate().filter_map(|(index, there)| {
                let own = self.shard_of(index);
                let mean = there.mean.clone().filter(|_| !own.is_empty());
                let of_mean = mean.map(|mean| mean.slice(own));
                of_mean.or_else(|| there.shard.clone())
            })),
        };
        sum.map_err(|reason| BucketError::Read {
            path: "all parameters".to_owned(),
            reason,
        })
    }

    /// Whether gradients are never sent.
    fn keeps_alone(&self) -> bool {
        self.keep == Gradients::Whole && self.group.size() == 1
    }

    /// The reduced gradient of the elements that this rank owns of a parameter, flat; `None` if it
    /// owns none, or no rank had a gradient.
    pub(crate) fn owned_there(&self, parameter: usize) -> Option<Tensor<1>> {
        let state = self.lock();
        if state.marks.get(parameter).is_none_or(|mark| *mark == 0) {
            return None;
        }
        let (bucket, index) = *self.places.get(parameter)?;
        let there = &state.buckets.get(bucket)?.there;
        if self.keeps_alone() {
            return there.parts.get(index).cloned();
        }
        let place = self
            .own_place(parameter)
            .filter(|place| !place.is_empty())?;
        if let Some(mean) = there.mean.clone() {
            return Some(mean.slice(place));
        }
        let shift = self.shard_of(bucket).start;
        let shard = there.shard.clone()?;
        Some(shard.slice(place.start - shift..place.end - shift))
    }

    /// Where in its bucket lies what this rank owns of a parameter.
    pub(crate) fn own_place(&self, parameter: usize) -> Option<Range<usize>> {
        let (_, slot) = self.place(parameter)?;
        let (start, owned) = (slot.elements.start, self.owned.get(parameter)?);
        Some(start + owned.start..start + owned.end)
    }

    /// Memory for a bucket of values on the device, of arbitrary contents, and its layout.
    pub(crate) fn empty_there(&self, bucket: usize) -> Option<(Tensor<1>, &BucketLayout)> {
        let (resident, layout) = (self.resident.as_ref()?, self.layouts.get(bucket)?);
        let dtype = storage::burn_dtype(layout.dtype);
        Some((
            Tensor::empty([layout.len], (&resident.device, dtype)),
            layout,
        ))
    }
}
