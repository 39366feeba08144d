//! Micro-batches of unequal weight: gradients are means over the weights of the global batch.

use std::collections::BTreeMap;

use burn::module::Module;
use burn::tensor::Tensor;
use serde_json::Value;

use super::{Parallel, ParallelError, tell_others};
use crate::ReduceOp;
use crate::bucket::BucketError;

/// Prefix of the unit in a saved state.
pub(super) const NAME: &str = "weights";
const UNIT: &str = "unit";

/// Weights of the current step, and the unit of all steps.
#[derive(Debug, Default)]
pub(super) struct Weights {
    /// Divisor of all losses, near the weight of a micro-batch and equal on all ranks.
    ///
    /// It keeps gradients in flight as small as those of a mean. For losses that are sums it is a
    /// power of two, which divides exactly and so changes no bit of the result. For losses that are
    /// means it is the weight of a whole micro-batch, whose gradients then stay as they are.
    unit: Option<f64>,
    /// Sums of this rank's weights in the current step, for each of its virtual ranks, if the step
    /// is weighted. A rank without virtual ranks has one sum.
    of_step: Option<Vec<f64>>,
}

/// The weight of a step over all ranks.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Weighted {
    /// Sum of all weights.
    pub(super) total: f64,
    /// Divisor of the reduced gradients.
    pub(super) share: f64,
}

impl Weights {
    /// This rank's weights in the current step, if the step is weighted.
    pub(super) fn of_step(&self) -> Option<&[f64]> {
        self.of_step.as_deref()
    }

    /// Adds a micro-batch of this rank's virtual rank number `share` to the current step; `None`
    /// has no effect.
    pub(super) fn add(&mut self, share: Option<usize>, weight: f64) {
        let sums = self.of_step.get_or_insert_default();
        let Some(share) = share else {
            return;
        };
        sums.resize(sums.len().max(share + 1), 0.0);
        sums[share] += weight;
    }

    pub(super) fn end_step(&mut self) {
        self.of_step = None;
    }

    /// The step's weight from the weights of all ranks; `None` if the step is not weighted.
    pub(super) fn share(&self, weights: &[f64]) -> Result<Option<Weighted>, ParallelError> {
        if weights.is_empty() {
            return Ok(None);
        }
        let total: f64 = weights.iter().sum();
        let share = total / (self.unit.unwrap_or(1.0) * weights.len() as f64);
        match share.is_normal() {
            true => Ok(Some(Weighted { total, share })),
            false => Err(ParallelError::NoWeight { total }),
        }
    }

    /// The scalars of a saved state.
    pub(super) fn scalars(&self) -> Vec<(String, Value)> {
        let unit = self.unit.map(|unit| (UNIT.to_owned(), unit.into()));
        unit.into_iter().collect()
    }

    /// Continues with the unit of a saved state. Ranks agree on a new one if it has none.
    pub(super) fn restore(&mut self, scalars: &BTreeMap<String, Value>) {
        self.unit = scalars
            .get(UNIT)
            .and_then(Value::as_f64)
            .filter(|unit| unit.is_normal());
    }
}

impl<M: Module> Parallel<M> {
    /// Computes the gradients of one micro-batch's `loss`, a sum over `weight` samples, tokens or
    /// pixels.
    ///
    /// Gradients of the step are those of the sum of all losses divided by the sum of all weights,
    /// over all micro-batches and ranks: the mean of the global batch, however unequal the shares.
    /// A weight of 0 is allowed. In a step, all micro-batches of all ranks use this method, or all
    /// use [`backward`](Self::backward).
    ///
    /// ```
    /// # use burn::{nn::LinearConfig, optim::AdamWConfig, tensor::{Device, Tensor}};
    /// # use burn_dist::{ProcessGroup, parallel::{Parallel, ParallelError, Strategy}};
    /// # fn main() -> Result<(), ParallelError> {
    /// # let device = Device::flex().autodiff();
    /// # let model = LinearConfig::new(10, 1).init(&device);
    /// # let group = ProcessGroup::single();
    /// let mut parallel = Parallel::new(model, AdamWConfig::new(), Strategy::Ddp, &group)?;
    /// for samples in [32, 7] {
    ///     let batch = Tensor::<2>::ones([samples, 10], &device);
    ///     let loss = parallel.model().forward(batch).square().sum();
    ///     parallel.backward_weighted(loss, samples as f64)?;
    ///     let report = parallel.step(1e-3)?;
    ///     assert_eq!(report.weight, Some(samples as f64));
    /// }
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// As [`backward`](Self::backward). Also fails if `weight` is negative or not finite, or if an
    /// earlier micro-batch of the step had no weight.
    pub fn backward_weighted(&mut self, loss: Tensor<1>, weight: f64) -> Result<(), ParallelError> {
        self.check_kind(true)?;
        self.check_weight(weight)?;
        let near = |largest: f64| largest.log2().round().clamp(-100.0, 100.0).exp2();
        let unit = self.unit(weight, near)?;
        self.backward_of(loss, |loss| match unit {
            1.0 => loss,
            unit => loss.div_scalar(unit),
        })?;
        self.add_weight(weight);
        self.end_micro_batch()
    }

    /// Adds the weight of the micro-batch whose backward has ended.
    pub(super) fn add_weight(&mut self, weight: f64) {
        self.weights.add(self.own_share(), weight);
    }

    pub(super) fn check_weight(&self, weight: f64) -> Result<(), ParallelError> {
        if weight.is_finite() && weight >= 0.0 {
            return Ok(());
        }
        let refused = ParallelError::Option {
            option: "the weight of a micro-batch",
            value: weight.to_string(),
            expected: "finite and not negative",
        };
        tell_others(&self.group, Err(refused))
    }

    /// Refuses a micro-batch with a weight after one without, and the reverse.
    pub(super) fn check_kind(&self, weighted: bool) -> Result<(), ParallelError> {
        if self.micro_batches == 0 || self.weights.of_step.is_some() == weighted {
            return Ok(());
        }
        self.in_order(Err(BucketError::Order(
            "backward and backward_weighted were called in one step",
        )))
    }

    /// The unit of the weights. The first time, `choose` makes it of the largest weight of any
    /// rank, in a collective call.
    pub(super) fn unit(
        &mut self,
        weight: f64,
        choose: impl FnOnce(f64) -> f64,
    ) -> Result<f64, ParallelError> {
        if let Some(unit) = self.weights.unit {
            return Ok(unit);
        }
        let mut largest = match &self.shares {
            None => [weight],
            // Ranks have different numbers of micro-batches, so they choose in the first one. The
            // largest weight would depend on the ranks; virtual rank 0 is always on rank 0.
            Some(_) if self.micro_batches > 0 => return Ok(1.0),
            Some(_) if self.group.rank() > 0 => [0.0],
            Some(_) => [weight],
        };
        self.group.all_reduce::<f64>(&mut largest, ReduceOp::Max)?;
        if largest[0] == 0.0 {
            return Ok(1.0);
        }
        let unit = choose(largest[0]);
        self.weights.unit = Some(unit);
        Ok(unit)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_share_counts_in_units_per_rank() {
        let mut weights = Weights::default();
        assert_eq!(weights.share(&[]).unwrap(), None);
        weights.unit = Some(8.0);
        let weighted = weights.share(&[6.0, 18.0]).unwrap().unwrap();
        assert_eq!((weighted.total, weighted.share), (24.0, 1.5));
    }

    #[test]
    fn no_weight_at_all_is_an_error() {
        let weights = Weights::default();
        for none in [&[0.0, 0.0][..], &[f64::MAX, f64::MAX]] {
            assert!(matches!(
                weights.share(none),
                Err(ParallelError::NoWeight { .. })
            ));
        }
    }

    #[test]
    fn the_unit_is_saved_and_restored() {
        let mut weights = Weights {
            unit: Some(512.0),
            of_step: None,
        };
        let scalars = weights.scalars().into_iter().collect();
        weights.unit = None;
        weights.restore(&scalars);
        assert_eq!(weights.unit, Some(512.0));
        weights.restore(&BTreeMap::new());
        assert_eq!(weights.unit, None);
    }
}
