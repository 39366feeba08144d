//! Divides the shards of an epoch over ranks.

use crate::SamplerError;
use crate::random::{Purpose, Stream};
use crate::sampler::{check_positive, check_rank};

/// How ranks share the samples of shards.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub enum Division {
    /// Rank `r` of `n` reads the shards `r, r + n, ..` of the epoch's order, and each of their
    /// samples.
    ///
    /// Every shard is read once. Ranks have unequal numbers of batches if their shards are unequal:
    /// train with `Parallel::join`.
    #[default]
    Shards,
    /// Rank `r` of `n` takes the samples `r, r + n, ..` of all shards.
    ///
    /// Numbers of samples differ by at most one, and with
    /// [`full_batches`](ShardSampler::full_batches) not at all. Every rank goes through every
    /// shard, but skips the samples of others.
    Samples,
}

/// Chooses the samples of a rank in an epoch of shards, and their order.
///
/// Without [`shuffle`](Self::shuffle), shards and samples come in their own order. Every sample
/// reaches exactly one rank, once per epoch. Batches depend on the number of ranks, so a resume
/// needs the same number.
#[derive(Debug, Clone)]
pub struct ShardSampler {
    batch: usize,
    rank: usize,
    size: usize,
    per_step: usize,
    division: Division,
    /// Samples in the buffer, and the seed.
    shuffle: Option<(usize, u64)>,
    full_batches: bool,
}

impl ShardSampler {
    /// Creates a sampler of micro-batches of `batch` samples for `rank` of `size` ranks.
    ///
    /// # Errors
    /// [`SamplerError`] if `batch` or `size` is 0 or `rank` is not below `size`.
    pub fn new(batch: usize, rank: usize, size: usize) -> Result<Self, SamplerError> {
        check_rank(rank, size)?;
        check_positive("the micro-batch", batch)?;
        Ok(ShardSampler {
            batch,
            rank,
            size,
            per_step: 1,
            division: Division::default(),
            shuffle: None,
            full_batches: false,
        })
    }

    /// Sets the number of micro-batches per step on each rank; 0 means 1.
    pub fn accumulate(mut self, micro_batches: usize) -> Self {
        self.per_step = micro_batches.max(1);
        self
    }

    /// Sets how ranks share the samples.
    pub fn divide(mut self, division: Division) -> Self {
        self.division = division;
        self
    }

    /// Shuffles shards and samples in every epoch, depending on `seed`, epoch and rank.
    ///
    /// A rank keeps `buffer` samples in memory, as they are in the shard, and draws the next one
    /// from them. Samples that are far apart never meet, so write shards in random order.
    pub fn shuffle(mut self, buffer: usize, seed: u64) -> Self {
        self.shuffle = Some((buffer.max(1), seed));
        self
    }

    /// Drops the samples at the end of the epoch that do not fill a step.
    ///
    /// With [`Division::Samples`], all ranks then have the same number of batches.
    pub fn full_batches(mut self) -> Self {
        self.full_batches = true;
        self
    }

    /// The samples of this rank in epoch `number`.
    pub fn epoch(&self, number: usize) -> ShardEpoch {
        ShardEpoch {
            sampler: self.clone(),
            number,
            start: 0,
        }
    }
}

/// One rank's batches of an epoch of shards.
#[derive(Debug, Clone)]
pub struct ShardEpoch {
    sampler: ShardSampler,
    number: usize,
    start: usize,
}

impl ShardEpoch {
    /// Leaves out the first `step` steps, for a run that resumes there.
    ///
    /// The samples of these steps are skipped in the shards. Empty if the epoch has at most `step`
    /// steps.
    pub fn from_step(mut self, step: usize) -> Self {
        self.start = step;
        self
    }

    /// Number of the epoch.
    pub fn number(&self) -> usize {
        self.number
    }

    /// Number of samples that were seen before.
    pub(super) fn seen(&self) -> usize {
        let step = self.sampler.batch.saturating_mul(self.sampler.per_step);
        step.saturating_mul(self.start)
    }

    /// Samples of a micro-batch.
    pub(super) fn batch(&self) -> usize {
        self.sampler.batch
    }

    /// Samples that are delivered together or, at the end of the epoch, not at all; `None` if a
    /// batch may be smaller.
    pub(super) fn all_or_none(&self) -> Option<usize> {
        let step = self.sampler.batch.saturating_mul(self.sampler.per_step);
        self.sampler.full_batches.then_some(step)
    }

    /// The rank and the world size, if ranks share samples.
    pub(super) fn turns(&self) -> Option<(usize, usize)> {
        let (rank, size) = (self.sampler.rank, self.sampler.size);
        (self.sampler.division == Division::Samples).then_some((rank, size))
    }

    /// Indices of the shards that this rank goes through, of `shards`.
    pub(super) fn order(&self, shards: usize) -> Vec<usize> {
        let mut order: Vec<usize> = (0..shards).collect();
        if let Some((_, seed)) = self.sampler.shuffle {
            Stream::new(Purpose::ShardOrder, seed, self.number as u64, 0).shuffle(&mut order);
        }
        match self.sampler.division {
            Division::Samples => order,
            Division::Shards => {
                let own = order.into_iter().skip(self.sampler.rank);
                own.step_by(self.sampler.size).collect()
            }
        }
    }

    /// Samples in the buffer, and the random numbers to draw from it.
    pub(super) fn buffer(&self) -> (usize, Stream) {
        let (buffer, seed) = self.sampler.shuffle.unwrap_or((1, 0));
        let (epoch, rank) = (self.number as u64, self.sampler.rank as u64);
        (buffer, Stream::new(Purpose::ShardBuffer, seed, epoch, rank))
    }

    /// The random numbers to decode a sample.
    pub(super) fn random(&self, shard: usize, position: usize) -> Stream {
        let seed = self.sampler.shuffle.map_or(0, |(_, seed)| seed);
        Stream::of_sample(Purpose::Sample, seed, self.number, position, shard as u32)
    }
}
