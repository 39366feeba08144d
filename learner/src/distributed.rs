//! The options of a distributed training.

use std::path::PathBuf;

use burn::tensor::Device;
use burn_dist::ProcessGroup;
use burn_dist::parallel::{ParallelOptions, ParameterOptimizer, Strategy};

/// A training strategy of burn-train for all ranks of a group.
///
/// Every rank makes the same training, with the whole data sets; each takes its share of them. By
/// default the Learner's own optimizer updates the parameters (data parallel). With
/// [`optimizer`](Self::optimizer) all strategies of burn-dist are possible.
///
/// If a rank fails, all ranks end, and `LearningResult::error` names the rank and the reason.
#[derive(Clone, Debug)]
pub struct Distributed {
    pub(crate) group: ProcessGroup,
    pub(crate) options: ParallelOptions,
    pub(crate) optimizer: Option<ParameterOptimizer>,
    pub(crate) device: Option<Device>,
    pub(crate) state_folder: Option<PathBuf>,
    pub(crate) states_kept: usize,
    pub(crate) seed: Option<u64>,
    pub(crate) loads_whole: bool,
    pub(crate) sends_train_outputs: bool,
}

impl Distributed {
    /// Trains data parallel on all ranks of `group`.
    pub fn new(group: &ProcessGroup) -> Self {
        Self {
            group: group.clone(),
            options: ParallelOptions::default(),
            optimizer: None,
            device: None,
            state_folder: None,
            states_kept: 3,
            seed: None,
            loads_whole: true,
            sends_train_outputs: true,
        }
    }

    /// Sets the strategy. All but [`Strategy::Ddp`] need an [`optimizer`](Self::optimizer).
    pub fn strategy(mut self, strategy: Strategy) -> Self {
        self.options.strategy = strategy;
        self
    }

    /// Sets all options of burn-dist. `accumulate` is that of `SupervisedTraining`.
    pub fn options(mut self, options: ParallelOptions) -> Self {
        self.options = options;
        self
    }

    /// Updates the parameters with this optimizer instead of the Learner's, which is then unused.
    ///
    /// The Learner's learning rate schedule stays in use, and `TrainStep::optimize` is not called.
    /// Gradients are means over the micro-batches of a step, and not sums.
    pub fn optimizer(mut self, optimizer: impl Into<ParameterOptimizer>) -> Self {
        self.optimizer = Some(optimizer.into());
        self
    }

    /// Sets the device of this rank. Default: the device of the Learner's model.
    ///
    /// burn-train does not tell a strategy about `gradient_checkpointing()`: pass
    /// `device.autodiff().gradient_checkpointing()` here.
    pub fn device(mut self, device: Device) -> Self {
        self.device = Some(device);
        self
    }

    /// Sets the folder for the state of [`optimizer`](Self::optimizer), which all ranks see.
    ///
    /// Needed with that optimizer if the training has checkpointers. The state is saved after every
    /// epoch; the newest `kept` epochs stay.
    pub fn state_folder(mut self, folder: impl Into<PathBuf>, kept: usize) -> Self {
        self.state_folder = Some(folder.into());
        self.states_kept = kept;
        self
    }

    /// Seeds the device for every batch, from `seed`, rank, epoch and iteration.
    ///
    /// Dropout then differs between ranks, and a resumed training continues with the same bits.
    pub fn seed(mut self, seed: u64) -> Self {
        self.seed = Some(seed);
        self
    }

    /// Declares that the data loaders of each rank have only that rank's share already.
    pub fn loaders_have_shares(mut self) -> Self {
        self.loads_whole = false;
        self
    }

    /// Computes training metrics from rank 0's batches alone.
    ///
    /// Otherwise the outputs of every training batch travel to rank 0. That is slow if they are
    /// large, such as the logits of a language model.
    pub fn train_metrics_of_rank_0(mut self) -> Self {
        self.sends_train_outputs = false;
        self
    }

    /// The ranks that train.
    pub fn group(&self) -> &ProcessGroup {
        &self.group
    }

    /// The device for every batch of a rank, if the training is seeded.
    pub(crate) fn seed_for(&self, epoch: usize, iteration: usize) -> Option<u64> {
        let mut mixed = self.seed?;
        for part in [self.group.rank(), epoch, iteration] {
            // SplitMix64, Steele et al. 2014, <https://doi.org/10.1145/2660193.2660195>.
            mixed = mixed
                .wrapping_add(part as u64)
                .wrapping_add(0x9E37_79B9_7F4A_7C15);
            mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
            mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
            mixed ^= mixed >> 31;
        }
        Some(mixed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_batch_has_a_seed_of_its_own() {
        let group = ProcessGroup::single();
        assert_eq!(Distributed::new(&group).seed_for(1, 1), None);
        let seeded = Distributed::new(&group).seed(1);
        let mut seeds: Vec<_> = (0..100)
            .map(|at| seeded.seed_for(at / 10, at % 10))
            .collect();
        assert_eq!(seeds[12], seeded.seed_for(1, 2));
        seeds.sort_unstable();
        seeds.dedup();
        assert_eq!(seeds.len(), 100);
    }
}
