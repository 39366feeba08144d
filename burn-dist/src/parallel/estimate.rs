//! How much memory the state of a training takes on each rank, before anything is started.

use super::Strategy;

/// Bytes on each rank for `f32` state that lives from step to step. Activations, buckets on their
/// way and the program itself come on top.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryEstimate {
    /// Parameters.
    pub parameters: u64,
    /// Gradients.
    pub gradients: u64,
    /// What the optimizer keeps.
    pub optimizer: u64,
}

impl MemoryEstimate {
    /// For a model with `parameters` elements, each with `moments` values of the optimizer (2 for
    /// AdamW, 1 for SGD with momentum), on `ranks` ranks that share one set of shards
    /// ([`ShardWithin::ranks`](super::ShardWithin::ranks)).
    ///
    /// The formula of the ZeRO paper (<https://arxiv.org/abs/1910.02054>, section 3) for `f32`
    /// throughout: with AdamW on N ranks 16, 8 + 8/N, 4 + 12/N and 16/N bytes per parameter.
    pub fn new(strategy: Strategy, parameters: u64, moments: u64, ranks: usize) -> Self {
        let whole = parameters.saturating_mul(4);
        let shard = whole.div_ceil(ranks.max(1) as u64);
        let pick = |sharded: bool| if sharded { shard } else { whole };
        Self {
            parameters: pick(strategy == Strategy::Zero3),
            gradients: pick(matches!(strategy, Strategy::Zero2 | Strategy::Zero3)),
            optimizer: pick(strategy.shards()).saturating_mul(moments),
        }
    }

    /// All together.
    pub fn total(&self) -> u64 {
        self.parameters
            .saturating_add(self.gradients)
            .saturating_add(self.optimizer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn adamw_follows_the_formula() {
        let total = |strategy, ranks| MemoryEstimate::new(strategy, 1000, 2, ranks).total();
        for ranks in [1, 2, 4] {
            let n = ranks as u64;
            assert_eq!(total(Strategy::Ddp, ranks), 16_000);
            assert_eq!(total(Strategy::Zero1, ranks), 8_000 + 8_000 / n);
            assert_eq!(total(Strategy::Zero2, ranks), 4_000 + 12_000 / n);
            assert_eq!(total(Strategy::Zero3, ranks), 16_000 / n);
        }
    }
}
