//! Memory that the state of a training needs on each rank, computed before anything starts.

use super::Strategy;
use crate::VirtualRanks;
use crate::shard::divide;

/// Bytes on each rank for the `f32` state that lives from step to step.
///
/// Activations, buckets in flight and the program itself come on top.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryEstimate {
    /// Parameters.
    pub parameters: u64,
    /// Gradients.
    pub gradients: u64,
    /// State of the optimizer.
    pub optimizer: u64,
}

/// The size of one parameter's state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ParameterState {
    /// Elements of the parameter.
    pub elements: u64,
    /// Values that the optimizer keeps for the parameter.
    pub kept: u64,
    /// Whether its optimizer needs the whole parameter, so that it is not cut.
    pub whole: bool,
}

/// Bytes of an `f32`.
const BYTES: u64 = 4;

impl MemoryEstimate {
    /// Estimates a model with `parameters` elements and `moments` optimizer values for each.
    ///
    /// `moments` is 2 for AdamW and 1 for SGD with momentum. `ranks` is the number of ranks that
    /// share one set of shards ([`ShardWithin::ranks`](super::ShardWithin::ranks)).
    ///
    /// The formula is that of the ZeRO paper (<https://arxiv.org/abs/1910.02054>, section 3) in
    /// `f32`: with AdamW on N ranks 16, 8 + 8/N, 4 + 12/N and 16/N bytes per parameter.
    pub fn new(strategy: Strategy, parameters: u64, moments: u64, ranks: usize) -> Self {
        let all = ParameterState {
            elements: parameters,
            kept: parameters.saturating_mul(moments),
            whole: false,
        };
        Self::of(strategy, &[all], ranks)
    }

    /// Estimates these parameters on the rank that holds the most.
    ///
    /// Whole parameters are divided among ranks as in training, so the formula of
    /// [`new`](Self::new) holds only as far as they can be divided evenly.
    pub fn of(strategy: Strategy, parameters: &[ParameterState], ranks: usize) -> Self {
        let ranks = match strategy.shards() {
            true => ranks.max(1),
            false => 1,
        };
        let (whole, cut): (Vec<_>, Vec<_>) = parameters.iter().partition(|state| state.whole);
        let size = |state: &&ParameterState| usize::try_from(state.elements).unwrap_or(usize::MAX);
        let owners = divide(&whole.iter().map(size).collect::<Vec<_>>(), ranks);
        let sum = |all: &mut dyn Iterator<Item = u64>| all.fold(0, u64::saturating_add);
        let part = |values: u64| values.saturating_mul(BYTES).div_ceil(ranks as u64);
        let cut_elements = part(sum(&mut cut.iter().map(|state| state.elements)));
        let cut_kept = part(sum(&mut cut.iter().map(|state| state.kept)));
        let all = sum(&mut parameters.iter().map(|state| state.elements)).saturating_mul(BYTES);
        let on = |rank: usize| {
            let own = || {
                whole
                    .iter()
                    .zip(&owners)
                    .filter(|(_, owner)| **owner == rank)
            };
            let elements = sum(&mut own().map(|(state, _)| state.elements));
            let kept = sum(&mut own().map(|(state, _)| state.kept));
            let shard = cut_elements.saturating_add(elements.saturating_mul(BYTES));
            let pick = |sharded: bool| if sharded { shard } else { all };
            Self {
                parameters: pick(strategy == Strategy::Zero3),
                gradients: pick(matches!(strategy, Strategy::Zero2 | Strategy::Zero3)),
                optimizer: cut_kept.saturating_add(kept.saturating_mul(BYTES)),
            }
        };
        (1..ranks).map(on).fold(on(0), |most, own| {
            if own.total() > most.total() {
                own
            } else {
                most
            }
        })
    }

    /// The same training with virtual ranks: a rank keeps all gradients of `parameters`, once for
    /// each sum that is open at the same time.
    #[must_use]
    pub fn among(self, virtual_ranks: VirtualRanks, parameters: &[ParameterState]) -> Self {
        let elements = parameters.iter().map(|state| state.elements);
        let all = elements.fold(0, u64::saturating_add).saturating_mul(BYTES);
        Self {
            gradients: all.saturating_mul(virtual_ranks.most_sums() as u64),
            ..self
        }
    }

    /// Sum of all parts.
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

    #[test]
    fn virtual_ranks_keep_the_gradients_of_all_open_sums() {
        let all = [ParameterState {
            elements: 100,
            kept: 200,
            whole: false,
        }];
        let gradients = |count, ranks| {
            let plain = MemoryEstimate::of(Strategy::Zero3, &all, ranks);
            let of = VirtualRanks::new(count, ranks).unwrap();
            plain.among(of, &all).gradients
        };
        assert_eq!(
            [gradients(4, 4), gradients(4, 2), gradients(8, 1)],
            [400, 800, 1600]
        );
    }

    #[test]
    fn whole_parameters_are_on_one_rank_each() {
        let state = |elements, kept, whole| ParameterState {
            elements,
            kept,
            whole,
        };
        let parameters = [
            state(100, 200, true),
            state(60, 120, true),
            state(50, 100, true),
            state(40, 0, false),
        ];
        let of = |strategy, ranks| MemoryEstimate::of(strategy, &parameters, ranks);
        // The whole parameters: 100 on one rank, 60 and 50 on the other. Half of the rest on each.
        let estimate = of(Strategy::Zero3, 2);
        assert_eq!(estimate.parameters, 4 * (110 + 20));
        assert_eq!(estimate.gradients, estimate.parameters);
        assert_eq!(estimate.optimizer, 4 * 220);
        assert_eq!(of(Strategy::Zero1, 2).gradients, 4 * 250);
        assert_eq!(of(Strategy::Zero2, 9).optimizer, 4 * 200);
        for strategy in Strategy::ALL {
            assert_eq!(of(strategy, 1).total(), 4 * (250 + 250 + 420));
        }
        assert_eq!(of(Strategy::Ddp, 3), of(Strategy::Ddp, 1));
    }
}
