//! Batches for ranks that have different numbers of them.

use burn::module::Module;

use super::{Parallel, ParallelError, tell_others};
use crate::{ProcessGroup, ReduceOp};

/// Batches of a rank, until every rank has run out: [`Parallel::join`].
#[derive(Debug)]
pub struct Join<I: Iterator> {
    batches: I,
    last: Option<I::Item>,
    group: ProcessGroup,
    ended: bool,
    /// Whether ranks have virtual ranks, and so different numbers of micro-batches.
    refused: bool,
}

/// A batch, and how much it counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Turn<T> {
    /// The batch.
    pub batch: T,
    /// Whether this rank had this batch before and only repeats it.
    pub is_repeated: bool,
}

impl<T> Turn<T> {
    /// The weight of the batch: `weight`, or 0 if the batch is repeated.
    pub fn weight(&self, weight: f64) -> f64 {
        match self.is_repeated {
            true => 0.0,
            false => weight,
        }
    }

    /// Factor of the loss: 1, or 0 if the batch is repeated.
    pub fn factor(&self) -> f64 {
        self.weight(1.0)
    }
}

impl<I: Iterator> Join<I>
where
    I::Item: Clone,
{
    /// Whether any rank has a batch. A collective call.
    fn any_rank(&self, own: bool) -> Result<bool, ParallelError> {
        let mut any = [u8::from(own)];
        self.group.all_reduce::<u8>(&mut any, ReduceOp::Max)?;
        Ok(any[0] != 0)
    }

    fn turn(&mut self) -> Result<Option<Turn<I::Item>>, ParallelError> {
        if self.refused {
            return Err(ParallelError::WholeStepsOnly);
        }
        let own = self.batches.next();
        if !self.any_rank(own.is_some())? {
            return Ok(None);
        }
        let (is_repeated, batch) = match own {
            Some(batch) => {
                self.last = Some(batch.clone());
                (false, batch)
            }
            None => match self.last.clone() {
                Some(batch) => (true, batch),
                None => {
                    let rank = self.group.rank();
                    return tell_others(&self.group, Err(ParallelError::NoBatch { rank }));
                }
            },
        };
        Ok(Some(Turn { batch, is_repeated }))
    }
}

impl<I: Iterator> Iterator for Join<I>
where
    I::Item: Clone,
{
    type Item = Result<Turn<I::Item>, ParallelError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.ended {
            return None;
        }
        let turn = self.turn().transpose();
        self.ended = !matches!(turn, Some(Ok(_)));
        turn
    }
}

impl<M: Module> Parallel<M> {
    /// Iterates over this rank's `batches` until every rank has run out of its own.
    ///
    /// A rank that has run out repeats its last batch, which counts nothing: all ranks make the
    /// same calls under every strategy. Every rank calls this and takes every turn. It costs one
    /// small collective per turn.
    ///
    /// ```
    /// # use burn::{nn::LinearConfig, optim::AdamWConfig, tensor::{Device, Tensor}};
    /// # use burn_dist::{ProcessGroup, parallel::{Parallel, ParallelError, Strategy}};
    /// # fn main() -> Result<(), ParallelError> {
    /// # let device = Device::flex().autodiff();
    /// # let model = LinearConfig::new(10, 1).init(&device);
    /// # let group = ProcessGroup::single();
    /// # let loader = vec![Tensor::<2>::ones([8, 10], &device); 3];
    /// let mut parallel = Parallel::new(model, AdamWConfig::new(), Strategy::Ddp, &group)?;
    /// for turn in parallel.join(loader) {
    ///     let turn = turn?;
    ///     let samples = turn.weight(turn.batch.dims()[0] as f64);
    ///     let loss = parallel.model().forward(turn.batch.clone()).square().sum();
    ///     parallel.backward_weighted(loss.mul_scalar(turn.factor()), samples)?;
    ///     parallel.step(1e-3)?;
    /// }
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// Batch normalization sees repeated batches too.
    ///
    /// # Errors
    ///
    /// A turn is an error if a collective fails, if a rank has no batch at all while another has
    /// one, or with [`virtual_ranks`](super::ParallelOptions::virtual_ranks). It is the last turn
    /// then.
    pub fn join<I>(&self, batches: I) -> Join<I::IntoIter>
    where
        I: IntoIterator,
        I::Item: Clone,
    {
        Join {
            batches: batches.into_iter(),
            last: None,
            group: self.group.clone(),
            ended: false,
            refused: self.shares.is_some(),
        }
    }
}
