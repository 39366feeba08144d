//! Divides an epoch of training over ranks.

use std::ops::Range;
use std::sync::Arc;

use super::order::Order;
use super::{Epoch, OwnShares, check_positive, check_rank};
use crate::SamplerError;

/// Divides an epoch of training over ranks; an incomplete last global batch is dropped.
#[derive(Debug, Clone)]
pub struct TrainSampler {
    len: usize,
    global_batch: usize,
    micro_batch: usize,
    shares: OwnShares,
    size: usize,
    seed: u64,
    order: Order,
    repeat: usize,
    /// Length of every sample of the data set, to group by.
    lengths: Option<Arc<[usize]>>,
}

impl TrainSampler {
    /// Creates a sampler of `len` samples for `rank` of `size` ranks, shuffled by `seed` and epoch.
    ///
    /// A step has `global_batch` samples. One forward and backward pass on one rank has
    /// `micro_batch` samples; `global_batch / (micro_batch * size)` micro-batches are accumulated.
    ///
    /// # Errors
    /// [`SamplerError`] if a size is 0, `rank` is not below `size`, `global_batch` is not a
    /// multiple of `micro_batch * size`, or `len` is below `global_batch`.
    pub fn new(
        len: usize,
        global_batch: usize,
        micro_batch: usize,
        rank: usize,
        size: usize,
        seed: u64,
    ) -> Result<Self, SamplerError> {
        check_rank(rank, size)?;
        check_positive("the global batch", global_batch)?;
        check_positive("the micro-batch", micro_batch)?;
        let divides = micro_batch
            .checked_mul(size)
            .is_some_and(|part| global_batch.is_multiple_of(part));
        if !divides {
            return Err(SamplerError::Divide {
                global_batch,
                micro_batch,
                size,
            });
        }
        if len < global_batch {
            return Err(SamplerError::TooFew { len, global_batch });
        }
        Ok(TrainSampler {
            len,
            global_batch,
            micro_batch,
            shares: OwnShares::one(rank),
            size,
            seed,
            order: Order::Shuffled,
            repeat: 1,
            lengths: None,
        })
    }

    /// Takes the samples in the data set's own order in every epoch.
    pub fn sequential(mut self) -> Self {
        self.order = Order::Sequential;
        self
    }

    /// Draws the samples of every epoch with replacement, with probabilities proportional to
    /// `weights`.
    ///
    /// `weights` has one entry per sample of the data set; then the `len` of
    /// [`new`](Self::new) is the number of draws in an epoch. All ranks share the same draws. A
    /// [`Loader`](crate::Loader) augments each draw of the same sample differently.
    /// [`sample_weights`](super::sample_weights) balances classes.
    ///
    /// # Errors
    /// [`SamplerError::Weights`] if a weight is negative or not finite, or if their sum is not a
    /// positive finite number. [`SamplerError::Lengths`] if a sample has a weight and no length.
    pub fn weighted(mut self, weights: &[f64]) -> Result<Self, SamplerError> {
        self.order = Order::weighted(weights)?;
        match self.lengths.take() {
            Some(lengths) => self.group_by_length(&lengths),
            None => Ok(self),
        }
    }

    /// Puts samples of similar length into the same micro-batch, so that less is padded.
    ///
    /// A global batch keeps its samples. They are sorted by length and cut into micro-batches, and
    /// the ranks take micro-batches in turn: at the same time, all ranks have similar lengths.
    /// `lengths` has one entry per sample of the data set.
    ///
    /// # Errors
    /// [`SamplerError::Lengths`] if a sample has no length.
    pub fn group_by_length(mut self, lengths: &[usize]) -> Result<Self, SamplerError> {
        let len = self.order.samples().unwrap_or(self.len);
        if lengths.len() < len {
            let given = lengths.len();
            return Err(SamplerError::Lengths { given, len });
        }
        self.lengths = Some(lengths.into());
        Ok(self)
    }

    /// Repeats every sample of a global batch `times` times, at most 256, one copy after the other.
    ///
    /// A [`Loader`](crate::Loader) augments each copy differently. An epoch keeps its number of
    /// steps, so it has only one `times`-th of the samples. Hoffer et al. 2019,
    /// <https://arxiv.org/abs/1901.09335>.
    pub fn repeat(mut self, times: usize) -> Self {
        self.repeat = times.clamp(1, 256);
        self
    }

    /// Takes the samples of several ranks, `own` of the `size` ranks of [`new`](Self::new): in each
    /// step the micro-batches of one after those of the other.
    ///
    /// For a rank that computes several virtual ranks. The first one comes `repeated` times more
    /// before all of them, for ranks that must make as many passes as others.
    ///
    /// # Errors
    /// [`SamplerError::Shares`] if `own` is empty or not below `size`.
    pub fn shares(mut self, own: Range<usize>, repeated: usize) -> Result<Self, SamplerError> {
        self.shares = OwnShares::new(own, repeated, self.size)?;
        Ok(self)
    }

    /// Number of micro-batches per step on this rank.
    pub fn accumulate(&self) -> usize {
        self.global_batch / self.micro_batch / self.size * self.shares.len()
    }

    /// Number of steps in one epoch.
    pub fn steps_per_epoch(&self) -> usize {
        self.len / self.global_batch
    }

    /// The samples of this rank in epoch `number`.
    pub fn epoch(&self, number: usize) -> Epoch {
        let order = self.order.of_epoch(self.len, self.seed, number);
        let repeat = self.repeat as u32;
        let copies = order.into_iter().flat_map(|(index, draw)| {
            (0..repeat).map(move |copy| (index, draw.wrapping_mul(repeat) + copy))
        });
        let order: Vec<(usize, u32)> = copies.take(self.len).collect();
        let globals = order.chunks_exact(self.global_batch);
        let (indices, mut copies): (Vec<usize>, Vec<u32>) =
            globals.flat_map(|global| self.own(global)).unzip();
        if copies.iter().all(|&copy| copy == 0) {
            copies = Vec::new();
        }
        Epoch {
            number: Some(number),
            indices,
            copies,
            batch: self.micro_batch,
            per_step: self.accumulate(),
            start: 0,
            starts: None,
        }
    }

    /// This rank's samples of a global batch, in the order of its micro-batches.
    fn own(&self, global: &[(usize, u32)]) -> Vec<(usize, u32)> {
        let shares = self.shares.iter();
        shares.flat_map(|share| self.share(global, share)).collect()
    }

    fn share(&self, global: &[(usize, u32)], rank: usize) -> Vec<(usize, u32)> {
        let Some(lengths) = &self.lengths else {
            let slice = self.global_batch / self.size;
            let own = global.chunks_exact(slice).nth(rank);
            return own.unwrap_or_default().to_vec();
        };
        let mut sorted = global.to_vec();
        sorted.sort_by_key(|&(index, _)| lengths.get(index));
        let micro_batches = sorted.chunks_exact(self.micro_batch);
        let own = micro_batches.skip(rank).step_by(self.size);
        own.flatten().copied().collect()
    }
}
