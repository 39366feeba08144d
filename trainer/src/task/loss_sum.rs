//! The sum of the losses of an evaluation, in the order of the items.

use burn_dist::{ProcessGroup, ReduceOp};

use crate::error::TrainError;

/// Sums of the losses of batches.
///
/// Ranks have their batches in the order of the items. So the sum has the same bits on any number
/// of ranks that have the same batches, as with `parallel.virtual_ranks`.
#[derive(Clone, Debug, Default)]
pub struct LossSum(Vec<f64>);

impl LossSum {
    /// Adds the losses of a batch.
    pub fn add(&mut self, losses: impl IntoIterator<Item = f64>) {
        self.0.push(losses.into_iter().sum());
    }

    /// Adds the batches of the other ranks. A collective call.
    ///
    /// # Errors
    /// Fails if a rank fails.
    pub fn reduce(&mut self, group: &ProcessGroup) -> Result<(), TrainError> {
        let mut counts = vec![0i64; group.size()];
        counts[group.rank()] = self.0.len() as i64;
        group.all_reduce(&mut counts, ReduceOp::Sum)?;
        let number = |counts: &[i64]| counts.iter().sum::<i64>().unsigned_abs() as usize;
        // Every sum comes from one rank, and zeros change no bit of it.
        let mut all = vec![0.0; number(&counts)];
        let first = number(&counts[..group.rank()]);
        all[first..first + self.0.len()].copy_from_slice(&self.0);
        group.all_reduce(&mut all, ReduceOp::Sum)?;
        self.0 = all;
        Ok(())
    }

    /// The sum of all losses so far.
    pub fn total(&self) -> f64 {
        self.0.iter().sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn batches_are_added_in_order() {
        let mut sum = LossSum::default();
        assert_eq!(sum.total(), 0.0);
        sum.add([1e16, 1.0]);
        sum.add([1.0]);
        sum.add([-1e16]);
        assert_eq!(sum.total(), ((1e16 + 1.0) + 1.0) - 1e16);
        sum.reduce(&ProcessGroup::single()).unwrap();
        assert_eq!(sum.total(), ((1e16 + 1.0) + 1.0) - 1e16);
    }
}
