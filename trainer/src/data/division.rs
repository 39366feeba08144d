//! Division of the items over the ranks, or over the virtual ranks that they compute.

use burn_dist::VirtualRanks;
use datasets::{EvalSampler, SamplerError, TrainSampler};

use crate::config::{Batching, ParallelConfig};

/// The part of the items that a rank takes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Division {
    rank: usize,
    size: usize,
    /// The virtual ranks, if there are any, and whether all ranks compute the same number.
    virtual_ranks: Option<(VirtualRanks, bool)>,
}

impl Division {
    /// The part of `rank` of `size` ranks in a training.
    pub(crate) fn to_train(config: &ParallelConfig, (rank, size): (usize, usize)) -> Self {
        let count = config.virtual_ranks;
        let of = count.and_then(|count| VirtualRanks::new(count, size).ok());
        let lockstep = config.strategy.is_lockstep();
        Self {
            virtual_ranks: of.map(|of| (of, lockstep)),
            ..Self::of_ranks((rank, size))
        }
    }

    /// The part of `rank` of `size` ranks.
    pub(crate) fn of_ranks((rank, size): (usize, usize)) -> Self {
        Self {
            rank,
            size,
            virtual_ranks: None,
        }
    }

    /// Sampler of `len` items for training.
    pub(crate) fn train_sampler(
        self,
        len: usize,
        batching: Batching,
        seed: u64,
    ) -> Result<TrainSampler, SamplerError> {
        let (global, micro) = (batching.global, batching.micro);
        let Some((of, lockstep)) = self.virtual_ranks else {
            return TrainSampler::new(len, global, micro, self.rank, self.size, seed);
        };
        let own = of.of_rank(self.rank);
        let repeated = match lockstep {
            true => of.lacking(self.rank),
            false => 0,
        };
        let sampler = TrainSampler::new(len, global, micro, own.start, of.count(), seed)?;
        sampler.shares(own, repeated)
    }

    /// Sampler of `len` items for evaluation.
    pub(crate) fn eval_sampler(
        self,
        len: usize,
        batch: usize,
    ) -> Result<EvalSampler, SamplerError> {
        let Some((of, _)) = self.virtual_ranks else {
            return EvalSampler::new(len, batch, self.rank, self.size);
        };
        let own = of.of_rank(self.rank);
        EvalSampler::new(len, batch, own.start, of.count())?.shares(own)
    }
}
