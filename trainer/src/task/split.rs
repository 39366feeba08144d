//! Items for training and evaluation, and a rank's share of both.

use std::sync::Arc;

use datasets::{EvalSampler, TrainSampler};

use super::batches::{Collate, Collated};
use super::open::Opening;
use crate::config::Config;
use crate::error::TrainError;

/// Both splits of a data set.
pub(super) struct Shares<C> {
    pub train: Arc<C>,
    pub test: Arc<C>,
    /// `None` if nothing is trained.
    train_sampler: Option<TrainSampler>,
    eval_sampler: EvalSampler,
}

/// Items that can be counted and picked.
pub trait Split: Collate + Sized {
    /// Number of items.
    fn len(&self) -> usize;

    /// Takes some items.
    fn pick(&self, indices: &[usize]) -> Self;
}

impl<C: Split> Shares<C> {
    /// Divides the items over the ranks. Evaluations have batches of at least `eval_batch` items.
    ///
    /// # Errors
    /// Fails if the batch sizes do not divide, or there are fewer items than in a global batch.
    pub fn new(
        opening: &Opening<'_>,
        [train, test]: [C; 2],
        eval_batch: usize,
    ) -> Result<Self, TrainError> {
        let Opening {
            config,
            batching,
            rank,
            size,
            ..
        } = *opening;
        let train = some(train, config.data.train_samples);
        let test = some(test, config.data.test_samples);
        let (train, test) = to_overfit(config, batching.global, train, test);
        let seed = config.train.seed;
        let sampler = || {
            let (global, micro) = (batching.global, batching.micro);
            TrainSampler::new(train.len(), global, micro, rank, size, seed)
        };
        let train_sampler = (!opening.only_evaluates).then(sampler).transpose()?;
        // Another batch of the training must not change a later evaluation.
        let batch = match opening.only_evaluates {
            true => eval_batch,
            false => batching.micro.max(eval_batch),
        };
        let mut eval_sampler = EvalSampler::new(test.len(), batch, rank, size)?;
        let limit = config.train.limit_batches;
        if let Some(batches) = limit.filter(|_| !opening.only_evaluates) {
            eval_sampler = eval_sampler.limit(usize::try_from(batches).unwrap_or(usize::MAX));
        }
        Ok(Self {
            train_sampler,
            eval_sampler,
            train: Arc::new(train),
            test: Arc::new(test),
        })
    }

    /// This rank's micro-batches of `epoch`, from 0, without the first `from_step` steps.
    pub fn train_batches(&self, epoch: usize, from_step: usize) -> Collated<C> {
        let sampler = self.train_sampler.as_ref();
        let epoch = sampler.map(|sampler| sampler.epoch(epoch).from_step(from_step));
        Collated::new(&self.train, epoch)
    }

    /// This rank's batches of an evaluation and their number.
    pub fn eval_batches(&self) -> (usize, Collated<C>) {
        let batches = Collated::new(&self.test, Some(self.eval_sampler.epoch()));
        (batches.number(), batches)
    }
}

/// The first `wanted` items.
fn some<C: Split>(items: C, wanted: Option<usize>) -> C {
    match wanted.filter(|wanted| *wanted < items.len()) {
        Some(wanted) => items.pick(&(0..wanted).collect::<Vec<_>>()),
        None => items,
    }
}

/// Both splits, or twice the few items that the model should overfit.
fn to_overfit<C: Split>(config: &Config, global_batch: usize, train: C, test: C) -> (C, C) {
    match config.train.overfit_batches {
        Some(batches) => {
            let wanted = batches.saturating_mul(global_batch).min(train.len());
            let few: Vec<usize> = (0..wanted).collect();
            (train.pick(&few), train.pick(&few))
        }
        None => (train, test),
    }
}
