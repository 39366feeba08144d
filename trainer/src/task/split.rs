//! Items for training and evaluation, and a rank's share of both.

use std::sync::Arc;

use datasets::{EvalSampler, TrainSampler};

use super::batches::{Collate, Collated};
use super::open::Opening;
use crate::config::{Config, EvalSet, no_validation};
use crate::data::{no_test, validation};
use crate::error::TrainError;

/// Items for training, and items that are evaluated.
pub(super) struct Shares<C> {
    pub train: Arc<C>,
    pub eval: Arc<C>,
    /// Whether the latter are for validation or test.
    pub evaluated: EvalSet,
    /// `None` if nothing is trained.
    train_sampler: Option<TrainSampler>,
    eval_sampler: EvalSampler,
    workers: usize,
}

/// Items that can be counted and picked.
pub trait Split: Collate + Sized {
    /// Number of items.
    fn len(&self) -> usize;

    /// Takes some items.
    fn pick(&self, indices: &[usize]) -> Self;

    /// Divides the items into those for training and those for validation.
    ///
    /// # Errors
    /// Fails if there are too few.
    fn divide(self, share: f64, seed: u64) -> Result<[Self; 2], TrainError> {
        let labels = vec![0; self.len()];
        let parts = validation::held_out(&labels, share, seed)?;
        Ok(parts.map(|indices| self.pick(&indices)))
    }
}

/// Items for training, and items for evaluation: a share of `train`, or the data of `own`.
///
/// Calls `own` only if the data is evaluated.
fn sets<C: Split>(
    opening: &Opening<'_>,
    train: C,
    own: impl FnOnce(EvalSet) -> Result<C, TrainError>,
) -> Result<[C; 2], TrainError> {
    let (data, evaluated) = (&opening.config.data, opening.evaluated);
    let train = some(train, data.train_samples);
    let own = || -> Result<C, TrainError> { Ok(some(own(evaluated)?, data.test_samples)) };
    let Some(share) = data.validation else {
        return match data.has(evaluated) || evaluated == EvalSet::Test {
            true => Ok([train, own()?]),
            false => Err(no_validation().into()),
        };
    };
    let [train, val] = train.divide(share, opening.config.train.seed)?;
    match evaluated {
        EvalSet::Val => Ok([train, val]),
        EvalSet::Test if data.has(evaluated) => Ok([train, own()?]),
        EvalSet::Test => Err(no_test(data).into()),
    }
}

impl<C: Split> Shares<C> {
    /// Divides the items over the ranks. `own` opens the data for evaluation, unless a share of
    /// `train` is for validation. Evaluations have batches of at least `eval_batch` items.
    ///
    /// # Errors
    /// Fails if the batch sizes do not divide, there are fewer items than in a global batch, or too
    /// few to hold some out for validation.
    pub fn new(
        opening: &Opening<'_>,
        train: C,
        own: impl FnOnce(EvalSet) -> Result<C, TrainError>,
        eval_batch: usize,
    ) -> Result<Self, TrainError> {
        let Opening {
            config, batching, ..
        } = *opening;
        let sets = sets(opening, train, own)?;
        let [train, eval] = to_overfit(config, batching.global, sets);
        let sampler = || opening.train_sampler(train.len());
        let train_sampler = (!opening.only_evaluates).then(sampler).transpose()?;
        // Another batch of the training must not change a later evaluation.
        let batch = match opening.only_evaluates {
            true => eval_batch,
            false => batching.micro.max(eval_batch),
        };
        let mut eval_sampler = opening.eval_sampler(eval.len(), batch)?;
        let limit = config.train.limit_batches;
        if let Some(batches) = limit.filter(|_| !opening.only_evaluates) {
            eval_sampler = eval_sampler.limit(usize::try_from(batches).unwrap_or(usize::MAX));
        }
        Ok(Self {
            train_sampler,
            eval_sampler,
            train: Arc::new(train),
            eval: Arc::new(eval),
            evaluated: opening.evaluated,
            workers: config.data.workers,
        })
    }

    /// This rank's micro-batches of `epoch`, from 0, without the first `from_step` steps.
    pub fn train_batches(&self, epoch: usize, from_step: usize) -> Collated<C> {
        let sampler = self.train_sampler.as_ref();
        let epoch = sampler.map(|sampler| sampler.epoch(epoch).from_step(from_step));
        Collated::new(&self.train, epoch, self.workers)
    }

    /// This rank's batches of an evaluation and their number.
    pub fn eval_batches(&self) -> (usize, Collated<C>) {
        let epoch = self.eval_sampler.epoch();
        let number = epoch.batches();
        (number, Collated::new(&self.eval, Some(epoch), self.workers))
    }
}

/// The first `wanted` items.
fn some<C: Split>(items: C, wanted: Option<usize>) -> C {
    match wanted.filter(|wanted| *wanted < items.len()) {
        Some(wanted) => items.pick(&(0..wanted).collect::<Vec<_>>()),
        None => items,
    }
}

/// Both sets, or twice the few items that the model should overfit.
fn to_overfit<C: Split>(config: &Config, global_batch: usize, sets: [C; 2]) -> [C; 2] {
    let [train, eval] = sets;
    match config.train.overfit_batches {
        Some(batches) => {
            let wanted = batches.saturating_mul(global_batch).min(train.len());
            let few: Vec<usize> = (0..wanted).collect();
            [train.pick(&few), train.pick(&few)]
        }
        None => [train, eval],
    }
}
