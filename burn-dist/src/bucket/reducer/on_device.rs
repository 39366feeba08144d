//! Gradients that stay on a device, from the hooks to the optimizer: what the other files do in host
//! memory, with tensors. Of a bucket only this rank's shard is left, unless all are kept.

use std::collections::BTreeMap;
use std::ops::Range;

use burn::tensor::{FloatDType, Tensor};

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
            return Err(BucketError::mismatch(
                spec,
                spec.num_elements(),
                (len, dtype),
            ));
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
                let of_mean = mean.and_then(|mean| resident::take_parts(mean, &[own]).pop());
                of_mean.or_else(|| there.shard.clone())
            })),
        };
        sum.map_err(|reason| BucketError::Read {
            path: "all parameters".to_owned(),
            reason,
        })
    }

    /// Of every parameter, the sum of the squares of the gradient in this rank's shards.
    pub(super) fn squares_there(&self, state: &State) -> Result<Vec<f64>, BucketError> {
        let all: Vec<usize> = (0..self.parameters.len()).collect();
        let mut squares = vec![0.0; all.len()];
        let parts = self.parts_there(state, &all, &self.shards);
        let (at, sums): (Vec<usize>, Vec<Tensor<1>>) = parts
            .into_iter()
            .enumerate()
            .filter_map(|(at, part)| Some((at, part?.cast(FloatDType::F32))))
            .map(|(at, part)| (at, resident::square(part)))
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

    /// Whether gradients are never sent.
    pub(super) fn keeps_alone(&self) -> bool {
        self.keep == Gradients::Whole && self.group.size() == 1
    }

    /// The reduced gradients of what this rank owns of `parameters`, in their order: none of those that no rank had
    /// one of, or that this rank owns nothing of.
    pub(crate) fn owned_there(&self, parameters: &[usize]) -> Vec<Option<Tensor<1>>> {
        self.parts_there(&self.lock(), parameters, &self.owned)
    }

    /// The parts `of` the reduced gradients of `parameters`, in their order: none of those that no rank had one of, or
    /// of which the part is empty.
    pub(super) fn parts_there(
        &self,
        state: &State,
        parameters: &[usize],
        of: &[Range<usize>],
    ) -> Vec<Option<Tensor<1>>> {
        let mut found = vec![None; parameters.len()];
        // By bucket, who wants what of it.
        let mut wanted: BTreeMap<usize, (Vec<usize>, Vec<Range<usize>>)> = BTreeMap::new();
        for (at, &parameter) in parameters.iter().enumerate() {
            let is_marked = state.is_marked(parameter);
            let Some(&(index, slot)) = self.places.get(parameter).filter(|_| is_marked) else {
                continue;
            };
            let there = &state.buckets[index].there;
            if self.keeps_alone() {
                found[at] = there.parts.get(slot).cloned();
                continue;
            }
            let shift = match there.mean {
                Some(_) => 0,
                None => self.shard_of(index).start,
            };
            if let Some(place) = self
                .place_of_part(parameter, of)
                .filter(|place| !place.is_empty())
            {
                let (by, places) = wanted.entry(index).or_default();
                by.push(at);
                places.push(place.start - shift..place.end - shift);
            }
        }
        for (index, (by, places)) in wanted {
            let there = &state.buckets[index].there;
            let flat = there.mean.as_ref().or(there.shard.as_ref()).cloned();
            let parts = flat.map(|flat| resident::take_parts(flat, &places));
            for (at, part) in by.into_iter().zip(parts.into_iter().flatten()) {
                found[at] = Some(part);
            }
        }
        found
    }

    /// Where in its bucket lies what this rank owns of a parameter.
    pub(crate) fn own_place(&self, parameter: usize) -> Option<Range<usize>> {
        self.place_of_part(parameter, &self.owned)
    }

    /// The same of the part `of` each parameter.
    fn place_of_part(&self, parameter: usize, of: &[Range<usize>]) -> Option<Range<usize>> {
        let (_, slot) = self.place(parameter)?;
        let (start, part) = (slot.elements.start, of.get(parameter)?);
        Some(start + part.start..start + part.end)
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
