//! Reduced gradients: reads them, changes them, steps parameters with them.

use std::ops::Range;

use burn::tensor::Tensor;

use super::Reducer;
use crate::ReduceOp;
use crate::bucket::error::BucketError;
use crate::bucket::store::FusedStep;
use crate::fused::FusedState;

impl Reducer {
    /// Euclidean norm of all reduced gradients together. A collective call.
    ///
    /// It has the same bits on every rank and, if no parameter stays whole, for every
    /// [`KeptGradients`].
    pub(crate) fn norm(&self) -> Result<f64, BucketError> {
        let mut state = self.state.lock();
        let store = &state.store;
        let shards = 0..self.partition.shards.len();
        let own: Result<Vec<f64>, _> = shards.map(|shard| store.sum_of_squares(shard)).collect();
        let sum = own.and_then(|own| Ok(self.over_shards(own, 1)?.into_iter().sum::<f64>()));
        sum.map(f64::sqrt)
            .map_err(|error| self.fail(&mut state, error))
    }

    /// Euclidean norm of each parameter's reduced gradient; `None` if no rank had one. The same
    /// bits on every rank. A collective call.
    pub(crate) fn norms(&self) -> Result<Vec<Option<f64>>, BucketError> {
        let mut state = self.state.lock();
        let all = 0..self.partition.parameters.len();
        let marked: Vec<usize> = all.filter(|at| state.is_marked(*at)).collect();
        let store = &state.store;
        let shards = 0..self.partition.shards.len();
        let own: Result<Vec<_>, _> = shards.map(|shard| store.squares(shard, &marked)).collect();
        let sums = own.and_then(|own| self.over_shards(own.concat(), marked.len()));
        let sums = sums.map_err(|error| self.fail(&mut state, error))?;
        let mut norms = vec![None; self.partition.parameters.len()];
        for (at, sum) in marked.iter().zip(sums) {
            norms[*at] = Some(sum.sqrt());
        }
        Ok(norms)
    }

    /// Adds the numbers of all shards: `own` has `each` of them for each of this rank's shards.
    /// VirtualGroup ranks have a fixed order.
    fn over_shards(&self, own: Vec<f64>, each: usize) -> Result<Vec<f64>, BucketError> {
        let group = &self.partition.group;
        let Some(among) = &self.partition.virtual_group else {
            let mut sums = own;
            group.all_reduce::<f64>(&mut sums, ReduceOp::Sum)?;
            return Ok(sums);
        };
        // Every number comes from one rank, and zeros change no bit of it.
        let mut all = vec![0.0; among.ranks.count() * each];
        let first = among.own().start * each;
        all[first..first + own.len()].copy_from_slice(&own);
        group.all_reduce::<f64>(&mut all, ReduceOp::Sum)?;
        let mut sums = vec![0.0; each];
        for shard in all.chunks_exact(each.max(1)) {
            sums.iter_mut()
                .zip(shard)
                .for_each(|(sum, own)| *sum += own);
        }
        Ok(sums)
    }

    /// The reduced gradients of this rank's part of `parameters`, in their order. `None` if no rank
    /// had a gradient or this rank owns nothing of the parameter.
    pub(crate) fn shards(
        &self,
        parameters: &[usize],
    ) -> Result<Vec<Option<Tensor<1>>>, BucketError> {
        let state = self.state.lock();
        let is_marked = |parameter: &usize| state.is_marked(*parameter);
        let marked: Vec<usize> = parameters.iter().copied().filter(is_marked).collect();
        let mut found = state.store.shard(&marked)?.into_iter();
        let of = |parameter| is_marked(parameter).then(|| found.next().flatten());
        Ok(parameters.iter().map(of).map(Option::flatten).collect())
    }

    /// Replaces this rank's part of every reduced gradient by the result of `change`.
    pub(crate) fn change(
        &self,
        mut change: impl FnMut(usize, Range<usize>, Tensor<1>) -> Tensor<1>,
    ) -> Result<(), BucketError> {
        let mut changed = |parameter: usize, owned: &Range<usize>| {
            let gradient = match owned.is_empty() {
                true => None,
                false => self.shards(&[parameter])?.pop().flatten(),
            };
            let Some(gradient) = gradient else {
                return Ok(());
            };
            let (len, dtype) = (gradient.shape().num_elements(), gradient.dtype());
            let gradient = change(parameter, owned.clone(), gradient);
            let found = (gradient.shape().num_elements(), gradient.dtype());
            if found != (len, dtype) {
                let spec = &self.partition.parameters[parameter];
                return Err(BucketError::mismatch(spec, len, found));
            }
            self.state.lock().store.replace(parameter, gradient)
        };
        let mut owned = self.partition.owned.iter().enumerate();
        let outcome = owned.try_for_each(|(parameter, owned)| changed(parameter, owned));
        outcome.map_err(|error| self.fail(&mut self.state.lock(), error))
    }

    /// Steps this rank's part of parameters with their reduced gradients times `factor`; returns
    /// new values and states. A parameter without a gradient on any rank keeps both.
    pub(crate) fn step(
        &self,
        parameters: Vec<FusedStep<'_>>,
        factor: Option<f32>,
    ) -> Result<Vec<(Tensor<1>, Option<FusedState>)>, BucketError> {
        let state = self.state.lock();
        let (mut marked, mut places) = (Vec::new(), Vec::new());
        for step in parameters {
            match state.is_marked(step.parameter) {
                true => {
                    marked.push(step);
                    places.push(None);
                }
                false => places.push(Some((step.values.get(), step.state))),
            }
        }
        let mut stepped = state.store.step(marked, factor)?.into_iter();
        let all = places.into_iter();
        Ok(all
            .filter_map(|unchanged| unchanged.or_else(|| stepped.next()))
            .collect())
    }

    /// Moves averages towards values by `weight` of the distance.
    pub(crate) fn blend(
        &self,
        averages_and_values: Vec<[Tensor<1>; 2]>,
        weight: f32,
    ) -> Result<Vec<Tensor<1>>, BucketError> {
        self.state.lock().store.blend(averages_and_values, weight)
    }
}
