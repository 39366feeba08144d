//! The virtual ranks of a rank in a step: which of them a micro-batch belongs to, and the running
//! statistics of all of them.

use burn::module::{Module, ModuleMapper, ModuleVisitor, Param};
use burn::tensor::{Tensor, TensorData};

use super::replicas::fold_statistics;
use super::statistics::is_running;
use super::visited::keeps_path;
use super::{Parallel, ParallelError, tell_others};
use crate::bucket::VirtualGroup;
use crate::virtual_ranks::Adding;
use crate::{Buffer, DType, ProcessGroup, ReduceOp, VirtualRanks};

/// The place of a micro-batch in its step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Share {
    /// The virtual rank whose data it takes.
    pub virtual_rank: usize,
    /// Number of the micro-batch within the step of this virtual rank.
    pub micro_batch: usize,
    /// Whether its gradients count. Under [`Strategy::Zero3`](super::Strategy::Zero3) all ranks run
    /// the same number of forward passes, so a rank with fewer virtual ranks than others first
    /// computes its first one without effect.
    pub counts: bool,
}

/// The virtual ranks of a rank.
pub(super) struct VirtualShares {
    among: VirtualGroup,
    /// Number of virtual ranks that this rank first computes without effect.
    without_effect: usize,
    /// `None` if the model has no running statistics.
    statistics: Option<Statistics>,
}

impl VirtualShares {
    /// Divides `count` virtual ranks among the ranks of `group`. In `lockstep`, all ranks compute
    /// the same number. A collective call.
    pub(super) fn of(
        group: &ProcessGroup,
        count: usize,
        lockstep: bool,
    ) -> Result<Self, ParallelError> {
        let ranks = VirtualRanks::new(count, group.size());
        let among = VirtualGroup {
            ranks: tell_others(group, ranks.map_err(ParallelError::from))?,
            group: group.meshed()?,
        };
        let without_effect = match lockstep {
            true => among.ranks.lacking(group.rank()),
            false => 0,
        };
        Ok(Self {
            among,
            without_effect,
            statistics: None,
        })
    }

    pub(super) fn group(&self) -> &VirtualGroup {
        &self.among
    }

    /// Number of virtual ranks that this rank computes in a step, with those without effect.
    fn turns(&self) -> usize {
        self.without_effect + self.among.own().len()
    }

    /// The share of micro-batch number `done` of this rank's step.
    fn share(&self, done: usize, accumulate: usize) -> Share {
        let turn = done / accumulate;
        let own = self.among.own();
        let number = turn.saturating_sub(self.without_effect);
        Share {
            virtual_rank: own.start + number.min(own.len() - 1),
            micro_batch: done % accumulate,
            counts: turn >= self.without_effect,
        }
    }

    /// Takes the running statistics of `model` as those at the beginning of the next step. A
    /// collective call.
    pub(super) fn begin_at<M: Module>(&mut self, model: &M) -> Result<(), ParallelError> {
        let begin = read(model)?;
        self.statistics = match begin.is_empty() {
            true => None,
            false => {
                let VirtualGroup { group, ranks } = &self.among;
                Some(Statistics {
                    sums: group.sums(DType::F64, begin.len(), *ranks)?,
                    adding: Adding::of(self.among.ranks, self.among.own()),
                    begin,
                })
            }
        };
        Ok(())
    }
}

/// The running statistics of a model over the virtual ranks of a step. Each begins the step with
/// the same ones; the step ends with the mean of all.
struct Statistics {
    /// The values at the beginning of the step, in visit order.
    begin: Vec<f64>,
    sums: Buffer,
    adding: Adding,
}

impl Statistics {
    /// Takes what `model` has after a virtual rank.
    fn add<M: Module>(&mut self, model: &M) -> Result<(), ParallelError> {
        let place = self.sums.sum_place(self.adding.sum());
        let values = read(model)?;
        let sum = &mut self
            .sums
            .as_mut_slice::<f64>()
            .map_err(crate::Error::from)?[place];
        sum.copy_from_slice(&values);
        for sum in self.adding.due() {
            self.sums.add_sums(sum);
        }
        self.adding.end_virtual_rank();
        Ok(())
    }

    /// The next step begins with the mean over all virtual ranks. A collective call.
    fn end_step(&mut self, group: &ProcessGroup) -> Result<(), ParallelError> {
        group.all_reduce_buffer(&mut self.sums, ReduceOp::Mean)?;
        let mean = self.sums.sum_place(0);
        let mean = &self.sums.as_slice::<f64>().map_err(crate::Error::from)?[mean];
        self.begin.copy_from_slice(mean);
        self.adding.begin_step();
        Ok(())
    }
}

impl<M: Module> Parallel<M> {
    /// Number of micro-batches that this rank computes in a step: calls of
    /// [`backward`](Self::backward) before [`step`](Self::step).
    ///
    /// It is [`accumulate`](super::ParallelOptions::accumulate), or with
    /// [`virtual_ranks`](super::ParallelOptions::virtual_ranks) as many for each of this rank's
    /// virtual ranks. Ranks may have different numbers then.
    pub fn micro_batches(&self) -> usize {
        let turns = self.shares.as_ref().map_or(1, VirtualShares::turns);
        turns * self.options.accumulate
    }

    /// The place of the next micro-batch in the step; `None` without virtual ranks, and after the
    /// last micro-batch of a step.
    ///
    /// Choose its data and the seed of its dropout by this and the step alone. Then a training does
    /// not depend on the number of ranks, to the last bit.
    ///
    /// ```
    /// # use burn::{nn::LinearConfig, optim::AdamWConfig, tensor::{Device, Tensor}};
    /// # use burn_dist::{ProcessGroup, parallel::{Parallel, ParallelError, ParallelOptions}};
    /// # fn main() -> Result<(), ParallelError> {
    /// # let device = Device::flex().autodiff();
    /// # let model = LinearConfig::new(10, 1).init(&device);
    /// # let group = ProcessGroup::single();
    /// # let batch_of = |_step, _virtual_rank| Tensor::<2>::ones([8, 10], &device);
    /// let options = ParallelOptions {
    ///     virtual_ranks: Some(4),
    ///     ..ParallelOptions::default()
    /// };
    /// let mut parallel = Parallel::new(model, AdamWConfig::new(), options, &group)?;
    /// for step in 0..2 {
    ///     while let Some(share) = parallel.next_share() {
    ///         let batch = batch_of(step, share.virtual_rank);
    ///         let loss = parallel.model().forward(batch).square().mean();
    ///         parallel.backward(loss)?;
    ///     }
    ///     parallel.step(1e-3)?;
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub fn next_share(&self) -> Option<Share> {
        let shares = self.shares.as_ref()?;
        (self.micro_batches < self.micro_batches())
            .then(|| shares.share(self.micro_batches, self.options.accumulate))
    }

    /// The virtual ranks and their division among ranks, with
    /// [`ParallelOptions::virtual_ranks`](super::ParallelOptions::virtual_ranks).
    pub fn virtual_ranks(&self) -> Option<VirtualRanks> {
        self.shares.as_ref().map(|shares| shares.among.ranks)
    }

    /// Whether the next micro-batch is the last one of the step.
    pub(super) fn is_last_micro_batch(&self) -> bool {
        self.micro_batches + 1 == self.micro_batches()
    }

    /// Number of this rank's virtual rank that the next micro-batch counts for, from 0; `None` if
    /// it has no effect.
    pub(super) fn own_share(&self) -> Option<usize> {
        let Some(shares) = &self.shares else {
            return Some(0);
        };
        let turn = self.micro_batches / self.options.accumulate;
        turn.checked_sub(shares.without_effect)
    }

    /// Number of the first of this rank's virtual ranks, and number of all of them; of ranks
    /// without virtual ranks.
    pub(super) fn places(&self) -> (usize, usize) {
        match &self.shares {
            Some(shares) => (shares.among.own().start, shares.among.ranks.count()),
            None => (self.group.rank(), self.group.size()),
        }
    }

    /// Counts a micro-batch whose backward has ended. After the last one of a virtual rank, the
    /// next virtual rank begins.
    pub(super) fn end_micro_batch(&mut self) -> Result<(), ParallelError> {
        let counted = self.own_share().is_some();
        self.micro_batches += 1;
        let is_last = self.micro_batches == self.micro_batches();
        if self.shares.is_none() || !self.micro_batches.is_multiple_of(self.options.accumulate) {
            return Ok(());
        }
        if !counted {
            self.reducer.reset();
        } else if !is_last {
            self.reducer.end_virtual_rank()?;
        }
        let ended = self.end_share(counted);
        tell_others(&self.group, ended)
    }

    /// Takes the running statistics of a virtual rank if it `counted`, and begins the next one.
    fn end_share(&mut self, counted: bool) -> Result<(), ParallelError> {
        let Some(statistics) = self.shares.as_mut().and_then(|s| s.statistics.as_mut()) else {
            return Ok(());
        };
        let Some(model) = self.model.take() else {
            return Ok(());
        };
        let added = match counted {
            true => statistics.add(&model),
            false => Ok(()),
        };
        self.model = Some(write(model, &statistics.begin));
        added
    }

    /// Sets the running statistics to the mean over all virtual ranks. A collective call.
    pub(super) fn end_shares(&mut self) -> Result<(), ParallelError> {
        let Some(shares) = &mut self.shares else {
            return Ok(());
        };
        let Some(statistics) = &mut shares.statistics else {
            return Ok(());
        };
        let Some(model) = self.model.take() else {
            return Ok(());
        };
        let ended = statistics.end_step(&shares.among.group);
        self.model = Some(write(model, &statistics.begin));
        ended
    }

    /// Begins again with the running statistics of the model. A collective call.
    pub(super) fn begin_shares(&mut self) -> Result<(), ParallelError> {
        let (Some(shares), Some(model)) = (&mut self.shares, &self.model) else {
            return Ok(());
        };
        tell_others(&self.group, shares.begin_at(model))
    }

    /// Forgets the virtual ranks of a step that is given up.
    pub(super) fn discard_shares(&mut self) {
        let statistics = self.shares.as_mut().and_then(|s| s.statistics.as_mut());
        let Some(statistics) = statistics else {
            return;
        };
        statistics.adding.begin_step();
        if let Some(model) = self.model.take() {
            self.model = Some(write(model, &statistics.begin));
        }
    }
}

/// The running statistics of a model, in visit order.
fn read<M: Module>(model: &M) -> Result<Vec<f64>, ParallelError> {
    let mut read = Read {
        path: Vec::new(),
        values: Vec::new(),
        outcome: Ok(()),
    };
    fold_statistics(model);
    model.visit(&mut read);
    read.outcome.map(|()| read.values)
}

/// The model with running statistics that [`read`] returned.
fn write<M: Module>(model: M, values: &[f64]) -> M {
    fold_statistics(&model);
    model.map(&mut Write {
        path: Vec::new(),
        values,
    })
}

struct Read {
    path: Vec<String>,
    values: Vec<f64>,
    outcome: Result<(), ParallelError>,
}

impl ModuleVisitor for Read {
    keeps_path!();

    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        if !is_running(self.path.last()) || param.is_require_grad() || self.outcome.is_err() {
            return;
        }
        match param.base().inner().try_into_data() {
            Ok(data) => self.values.extend(data.iter::<f64>()),
            Err(error) => self.outcome = Err(ParallelError::read(&self.path.join("."), error)),
        }
    }
}

struct Write<'a> {
    path: Vec<String>,
    values: &'a [f64],
}

impl ModuleMapper for Write<'_> {
    keeps_path!();

    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        if !is_running(self.path.last()) || param.is_require_grad() {
            return param;
        }
        param.map(|value| {
            let shape = value.shape();
            let Some((own, others)) = self.values.split_at_checked(shape.num_elements()) else {
                return value;
            };
            self.values = others;
            let data = TensorData::new(own.to_vec(), shape);
            Tensor::from_data(data, (&value.device(), value.dtype()))
        })
    }
}
