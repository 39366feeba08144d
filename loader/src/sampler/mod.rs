//! Chooses the samples of a rank in an epoch, and their order.
//!
//! The order depends only on (seed, epoch). Global batch `b` is `order[b * G .. (b + 1) * G]` for
//! every world size; rank `r` takes its `r`-th equal slice and cuts it into micro-batches. So runs
//! with 1 and with n ranks see the same global batches, and a run can resume at any step without
//! replaying earlier ones.

mod eval;
mod order;
mod train;
mod weights;

use std::ops::Range;

use crate::SamplerError;
pub use eval::EvalSampler;
pub use train::TrainSampler;
pub use weights::{class_weights, sample_weights};

/// One rank's batches of an epoch, as indices into the data set.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Epoch {
    number: Option<usize>,
    indices: Vec<usize>,
    /// Number of the copy of each sample; empty without copies.
    copies: Vec<u32>,
    batch: usize,
    per_step: usize,
    start: usize,
    /// First index of each batch, if batches end within the indices too.
    starts: Option<Vec<usize>>,
}

impl Epoch {
    /// Leaves out the first `step` steps, for a run that resumes there.
    ///
    /// Empty if the epoch has at most `step` steps.
    pub fn from_step(mut self, step: usize) -> Self {
        if let Some(starts) = &mut self.starts {
            starts.drain(..step.min(starts.len()));
            self.start = starts.first().copied().unwrap_or(self.indices.len());
            return self;
        }
        let skipped = self
            .batch
            .saturating_mul(self.per_step)
            .saturating_mul(step);
        self.start = skipped.min(self.indices.len());
        self
    }

    /// Number of the epoch; `None` for an evaluation.
    pub fn number(&self) -> Option<usize> {
        self.number
    }

    /// Number of remaining steps; for an evaluation, of batches.
    pub fn steps(&self) -> usize {
        self.batches().div_ceil(self.per_step)
    }

    /// Number of remaining micro-batches.
    pub fn batches(&self) -> usize {
        match &self.starts {
            Some(starts) => starts.len(),
            None => self.remaining().len().div_ceil(self.batch),
        }
    }

    /// Number of remaining samples.
    pub fn samples(&self) -> usize {
        self.remaining().len()
    }

    /// Indices of the micro-batch at `position` among the remaining ones; `None` after the end.
    pub fn get(&self, position: usize) -> Option<&[usize]> {
        if let Some(starts) = &self.starts {
            let end = starts.get(position + 1).copied();
            let batch = *starts.get(position)?..end.unwrap_or(self.indices.len());
            return self.indices.get(batch);
        }
        let remaining = self.remaining();
        let start = position.checked_mul(self.batch)?;
        let end = start.saturating_add(self.batch).min(remaining.len());
        remaining.get(start..end).filter(|part| !part.is_empty())
    }

    /// Numbers of the copies, from 0, of the samples in the micro-batch at `position`.
    ///
    /// Empty if no sample is repeated.
    pub fn copies(&self, position: usize) -> &[u32] {
        let remaining = self.copies.get(self.start..).unwrap_or_default();
        let start = position.saturating_mul(self.batch);
        let end = start.saturating_add(self.batch).min(remaining.len());
        remaining.get(start..end).unwrap_or_default()
    }

    /// The remaining micro-batches, in order; `accumulate` consecutive ones make one step.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = &[usize]> {
        (0..self.batches()).map(|position| self.get(position).unwrap_or_default())
    }

    fn remaining(&self) -> &[usize] {
        self.indices.get(self.start..).unwrap_or_default()
    }
}

/// The shares of a division that one rank takes, one after the other.
#[derive(Debug, Clone)]
struct OwnShares {
    own: Range<usize>,
    /// How often the first one comes once more before them.
    repeated: usize,
}

impl OwnShares {
    fn one(rank: usize) -> Self {
        Self {
            own: rank..rank + 1,
            repeated: 0,
        }
    }

    fn new(own: Range<usize>, repeated: usize, size: usize) -> Result<Self, SamplerError> {
        match own.is_empty() || own.end > size {
            true => Err(SamplerError::Shares { own, size }),
            false => Ok(Self { own, repeated }),
        }
    }

    fn len(&self) -> usize {
        self.own.len() + self.repeated
    }

    fn iter(&self) -> impl Iterator<Item = usize> + use<> {
        let again = std::iter::repeat_n(self.own.start, self.repeated);
        again.chain(self.own.clone())
    }
}

pub(crate) fn check_rank(rank: usize, size: usize) -> Result<(), SamplerError> {
    check_positive("the world size", size)?;
    if rank >= size {
        return Err(SamplerError::Rank { rank, size });
    }
    Ok(())
}

pub(crate) fn check_positive(what: &'static str, value: usize) -> Result<(), SamplerError> {
    if value == 0 {
        return Err(SamplerError::Zero { what });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::order::permutation;
    use super::*;

    #[test]
    fn the_shuffle_never_changes() {
        assert_eq!(permutation(10, 42, 0), [3, 6, 5, 2, 0, 1, 8, 4, 7, 9]);
        assert_eq!(permutation(10, 42, 1), [1, 0, 2, 5, 8, 3, 7, 9, 4, 6]);
        assert!(permutation(0, 42, 0).is_empty());
        assert_eq!(permutation(1, 42, 0), [0]);
    }

    #[test]
    fn impossible_divisions_are_refused() {
        let new = TrainSampler::new;
        let zero = |what| SamplerError::Zero { what };
        assert_eq!(new(9, 0, 1, 0, 1, 0).unwrap_err(), zero("the global batch"));
        assert_eq!(new(9, 1, 0, 0, 1, 0).unwrap_err(), zero("the micro-batch"));
        assert_eq!(new(9, 1, 1, 0, 0, 0).unwrap_err(), zero("the world size"));
        let rank = SamplerError::Rank { rank: 2, size: 2 };
        assert_eq!(new(9, 2, 1, 2, 2, 0).unwrap_err(), rank);
        let divide = new(99, 64, 12, 0, 2, 0).unwrap_err();
        assert!(divide.to_string().contains("multiple of 24, such as 48"));
        assert!(new(9, 8, usize::MAX, 0, 2, 0).is_err());
        let few = SamplerError::TooFew {
            len: 7,
            global_batch: 8,
        };
        assert_eq!(new(7, 8, 8, 0, 1, 0).unwrap_err(), few);
        assert!(EvalSampler::new(9, 0, 0, 1).is_err());
        assert!(EvalSampler::new(9, 1, 1, 1).is_err());
        assert!(EvalSampler::new(9, 1, 0, 0).is_err());
    }

    #[test]
    fn sequential_keeps_the_order() {
        let sampler = TrainSampler::new(10, 4, 1, 1, 2, 0).unwrap().sequential();
        let epoch = sampler.epoch(3);
        let batches: Vec<&[usize]> = epoch.iter().collect();
        assert_eq!(batches, [[2], [3], [6], [7]]);
        assert_eq!((epoch.steps(), epoch.number()), (2, Some(3)));
    }

    #[test]
    fn repeated_samples_stand_together_in_a_global_batch() {
        let sampler = |rank, size| {
            TrainSampler::new(100, 12, 3, rank, size, 7)
                .unwrap()
                .repeat(3)
        };
        let alone = sampler(0, 1).epoch(2);
        assert_eq!(alone.steps(), 8);
        let mut seen = std::collections::HashMap::new();
        for (position, batch) in alone.iter().enumerate() {
            assert_eq!(batch[0], batch[1]);
            assert_eq!(batch[0], batch[2]);
            assert_eq!(alone.copies(position), [0, 1, 2]);
            *seen.entry(batch[0]).or_insert(0) += 1;
        }
        assert_eq!(seen.len(), 32);
        assert!(seen.values().all(|&times| times == 1));
        // Two ranks share the samples of one rank, with the copies.
        let ranks = [sampler(0, 2).epoch(2), sampler(1, 2).epoch(2)];
        for step in 0..8 {
            for (rank, own) in ranks.iter().enumerate() {
                for part in 0..2 {
                    let whole = 4 * step + 2 * rank + part;
                    assert_eq!(own.get(2 * step + part), alone.get(whole));
                    assert_eq!(own.copies(2 * step + part), alone.copies(whole));
                }
            }
        }
        let rest = sampler(0, 1).epoch(2).from_step(3);
        assert_eq!(
            (rest.get(0), rest.copies(0)),
            (alone.get(12), alone.copies(12))
        );
        assert!(sampler(0, 1).repeat(1).epoch(0).copies(0).is_empty());
    }

    proptest! {
        #[test]
        fn shares_are_those_of_as_many_ranks(
            count in 1usize..7,
            own in (0usize..7, 1usize..4),
            sizes in (1usize..4, 1usize..4, 0usize..60),
            repeated in 0usize..3,
        ) {
            let own = own.0.min(count - 1)..(own.0 + own.1).min(count);
            let own = own.start..own.end.max(own.start + 1);
            let (micro, accumulate, more) = sizes;
            let global = micro * accumulate * count;
            let len = 2 * global + more;
            let train = |rank| TrainSampler::new(len, global, micro, rank, count, 3).unwrap();
            let shares = train(0).shares(own.clone(), repeated).unwrap();
            let turns: Vec<usize> = std::iter::repeat_n(own.start, repeated).chain(own.clone()).collect();
            prop_assert_eq!(shares.accumulate(), accumulate * turns.len());
            let epoch = shares.epoch(1).from_step(1);
            prop_assert_eq!(epoch.steps(), len / global - 1);
            for step in 0..epoch.steps() {
                for (turn, share) in turns.iter().enumerate() {
                    let alone = train(*share).epoch(1).from_step(1);
                    for part in 0..accumulate {
                        let found = epoch.get((step * turns.len() + turn) * accumulate + part);
                        prop_assert_eq!(found, alone.get(step * accumulate + part));
                    }
                }
            }
            let eval = |rank| EvalSampler::new(more, 4, rank, count).unwrap().limit(2);
            let shares = eval(0).shares(own.clone()).unwrap().epoch();
            let alone: Vec<Epoch> = own.map(|rank| eval(rank).epoch()).collect();
            let expected: Vec<&[usize]> = alone.iter().flat_map(Epoch::iter).collect();
            prop_assert_eq!(shares.iter().collect::<Vec<_>>(), expected.clone());
            prop_assert_eq!(shares.batches(), expected.len());
            let rest = shares.from_step(1);
            let expected = expected.get(1..).unwrap_or_default();
            prop_assert_eq!(rest.iter().collect::<Vec<_>>(), expected);
            prop_assert_eq!(rest.samples(), expected.concat().len());
        }
    }

    #[test]
    fn shares_that_do_not_exist_are_refused() {
        let train = || TrainSampler::new(9, 4, 1, 0, 2, 0).unwrap();
        assert!(train().shares(1..2, 0).is_ok());
        for own in [1..3, 1..1] {
            let error = train().shares(own.clone(), 0).unwrap_err();
            assert!(error.to_string().contains("in a division by 2"), "{error}");
            assert!(EvalSampler::new(9, 4, 0, 2).unwrap().shares(own).is_err());
        }
    }

    /// Global batches of a sampler, joined over all ranks.
    fn joined(samplers: &[TrainSampler], epoch: usize) -> Vec<Vec<(usize, u32)>> {
        let epochs: Vec<Epoch> = samplers
            .iter()
            .map(|sampler| sampler.epoch(epoch))
            .collect();
        let per_step = samplers[0].accumulate();
        let of_step = |step| {
            let batches = epochs.iter().flat_map(|epoch| {
                (step * per_step..(step + 1) * per_step).flat_map(|position| {
                    let indices = epoch.get(position).unwrap().iter().copied();
                    let copies = epoch.copies(position).iter().copied();
                    indices.zip(copies.chain(std::iter::repeat(0)))
                })
            });
            batches.collect()
        };
        (0..epochs[0].steps()).map(of_step).collect()
    }

    #[test]
    fn micro_batches_group_similar_lengths() {
        let lengths: Vec<usize> = (0..64).map(|index| index * 7 % 64).collect();
        let sampler = |rank| {
            let plain = TrainSampler::new(64, 32, 4, rank, 2, 5).unwrap();
            plain.group_by_length(&lengths).unwrap()
        };
        let epochs = [sampler(0).epoch(0), sampler(1).epoch(0)];
        let of =
            |indices: &[usize]| -> Vec<usize> { indices.iter().map(|&i| lengths[i]).collect() };
        for step in 0..2 {
            let mut longest = 0;
            for part in 0..4 {
                // In turn: rank 0, rank 1, rank 0, and longer every time.
                for epoch in &epochs {
                    let batch = of(epoch.get(4 * step + part).unwrap());
                    assert!(batch.iter().all(|&length| length >= longest), "{batch:?}");
                    longest = batch.iter().copied().max().unwrap();
                }
            }
        }
        let error = TrainSampler::new(64, 32, 4, 0, 2, 5)
            .unwrap()
            .group_by_length(&lengths[1..])
            .unwrap_err();
        assert_eq!(error, SamplerError::Lengths { given: 63, len: 64 });
    }

    #[test]
    fn copies_of_repeated_draws_are_counted_over_all_ranks() {
        let sampler = |rank, size| {
            let plain = TrainSampler::new(24, 8, 2, rank, size, 3)
                .unwrap()
                .repeat(2);
            plain.weighted(&[1.0, 2.0]).unwrap()
        };
        let alone = joined(&[sampler(0, 1)], 1);
        let mut all: Vec<(usize, u32)> = alone.iter().flatten().copied().collect();
        all.sort_unstable();
        let ones = all.iter().filter(|(index, _)| *index == 1).count();
        let expected = (0..24 - ones as u32).map(|copy| (0, copy));
        let expected = expected.chain((0..ones as u32).map(|copy| (1, copy)));
        assert!(all.iter().copied().eq(expected), "{all:?}");
        assert_eq!(joined(&[sampler(0, 2), sampler(1, 2)], 1), alone);
    }

    #[test]
    fn resuming_behind_the_end_leaves_nothing() {
        let sampler = TrainSampler::new(10, 4, 2, 0, 1, 0).unwrap();
        for step in [2, 3, usize::MAX] {
            let rest = sampler.epoch(0).from_step(step);
            assert_eq!((rest.steps(), rest.batches(), rest.get(0)), (0, 0, None));
        }
    }

    /// A length, micro-batch, accumulation, world size, seed and epoch that match.
    fn training() -> impl Strategy<Value = (usize, usize, usize, usize, u64, usize)> {
        (1usize..5, 1usize..4, 1usize..6).prop_flat_map(|(micro, accumulate, size)| {
            let lens = micro * accumulate * size..300;
            let fixed = (Just(micro), Just(accumulate), Just(size));
            (lens, fixed, any::<u64>(), 0usize..1000)
                .prop_map(|(len, (m, a, n), seed, epoch)| (len, m, a, n, seed, epoch))
        })
    }

    proptest! {
        #[test]
        fn a_permutation_has_every_index_once(len in 0usize..500, seed: u64, epoch: usize) {
            let mut order = permutation(len, seed, epoch);
            order.sort_unstable();
            prop_assert_eq!(order, (0..len).collect::<Vec<_>>());
        }

        #[test]
        fn ranks_share_the_global_batches_of_one_rank((len, micro, accumulate, size, seed, epoch) in training()) {
            let global = micro * accumulate * size;
            let alone = TrainSampler::new(len, global, global, 0, 1, seed).unwrap().epoch(epoch);
            let ranks: Vec<Epoch> = (0..size)
                .map(|rank| TrainSampler::new(len, global, micro, rank, size, seed).unwrap().epoch(epoch))
                .collect();
            prop_assert_eq!(alone.steps(), len / global);
            for (step, whole) in alone.iter().enumerate() {
                let mut joined = Vec::new();
                for rank in &ranks {
                    for part in 0..accumulate {
                        let batch = rank.get(step * accumulate + part).unwrap();
                        prop_assert_eq!(batch.len(), micro);
                        joined.extend_from_slice(batch);
                    }
                }
                prop_assert_eq!(&joined, whole);
            }
            let mut seen: Vec<usize> = ranks.iter().flat_map(|rank| rank.iter().flatten()).copied().collect();
            let used = seen.len();
            seen.sort_unstable();
            seen.dedup();
            prop_assert_eq!(seen.len(), used);
            prop_assert_eq!(used, len / global * global);
        }

        #[test]
        fn resuming_gives_the_rest_of_the_epoch((len, micro, accumulate, size, seed, epoch) in training(), step in 0usize..40) {
            let global = micro * accumulate * size;
            let sampler = TrainSampler::new(len, global, micro, size - 1, size, seed).unwrap();
            let whole = sampler.epoch(epoch);
            let rest = sampler.epoch(epoch).from_step(step);
            let expected: Vec<&[usize]> = whole.iter().skip(step * accumulate).collect();
            prop_assert_eq!(rest.iter().collect::<Vec<_>>(), expected);
            prop_assert_eq!(rest.steps(), whole.steps().saturating_sub(step));
            prop_assert_eq!(rest.iter().len(), rest.batches());
        }

        #[test]
        fn weighted_and_grouped_ranks_share_the_global_batches_of_one_rank(
            (len, micro, accumulate, size, seed, epoch) in training(),
            items in 1usize..20,
            step in 0usize..40,
        ) {
            let global = micro * accumulate * size;
            let weights: Vec<f64> = (1..=items).map(|weight| weight as f64).collect();
            let lengths: Vec<usize> = (0..items).map(|index| index * 7919 % 13).collect();
            let new = |rank, size, micro| {
                let plain = TrainSampler::new(len, global, micro, rank, size, seed).unwrap();
                plain.weighted(&weights).unwrap()
            };
            let alone = joined(&[new(0, 1, global)], epoch);
            let ranks: Vec<_> = (0..size).map(|rank| new(rank, size, micro)).collect();
            prop_assert_eq!(&joined(&ranks, epoch), &alone);
            let grouped: Vec<_> = ranks
                .iter()
                .map(|sampler| sampler.clone().group_by_length(&lengths).unwrap())
                .collect();
            for (mut grouped, mut plain) in joined(&grouped, epoch).into_iter().zip(alone) {
                grouped.sort_unstable();
                plain.sort_unstable();
                prop_assert_eq!(grouped, plain);
            }
            let (whole, rest) = (grouped[0].epoch(epoch), grouped[0].epoch(epoch).from_step(step));
            let expected: Vec<&[usize]> = whole.iter().skip(step * accumulate).collect();
            prop_assert_eq!(rest.iter().collect::<Vec<_>>(), expected);
        }

        #[test]
        fn evaluation_counts_every_sample_once(len in 0usize..300, batch in 1usize..70, size in 1usize..400) {
            let mut seen = Vec::new();
            for rank in 0..size {
                let epoch = EvalSampler::new(len, batch, rank, size).unwrap().epoch();
                prop_assert_eq!(epoch.number(), None);
                prop_assert!(epoch.samples().abs_diff(len / size) <= 1);
                prop_assert!(epoch.iter().all(|part| !part.is_empty() && part.len() <= batch));
                for position in 0..epoch.batches() {
                    seen.extend_from_slice(epoch.get(position).unwrap());
                }
                prop_assert_eq!(epoch.get(epoch.batches()), None);
            }
            prop_assert_eq!(seen, (0..len).collect::<Vec<_>>());
        }
    }
}
