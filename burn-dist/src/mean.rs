//! Means over weights that add up exactly over ranks.

use crate::{Error, ProcessGroup, ReduceOp};

/// A mean over samples, tokens or any other weight.
///
/// Each rank adds its own values. [`reduce`](Self::reduce) makes it the mean over all ranks,
/// however unequal their shares are. Sums are `f64`.
///
/// ```
/// use burn_dist::{ProcessGroup, WeightedMean};
///
/// let group = ProcessGroup::single();
/// let mut loss = WeightedMean::default();
/// loss.add_mean(0.5, 32.0); // mean loss of 32 samples
/// loss.add_sum(7.0, 7.0); // sum of the losses of 7 samples
/// assert_eq!(loss.reduce(&group)?.mean(), Some(23.0 / 39.0));
/// # Ok::<(), burn_dist::Error>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct WeightedMean {
    sum: f64,
    weight: f64,
}

impl WeightedMean {
    /// Adds a sum of values and its weight.
    pub fn add_sum(&mut self, sum: f64, weight: f64) {
        self.sum += sum;
        self.weight += weight;
    }

    /// Adds a mean of values of the total weight `weight`. A weight of 0 adds nothing, not even a
    /// mean of NaN.
    pub fn add_mean(&mut self, mean: f64, weight: f64) {
        if weight != 0.0 {
            self.add_sum(mean * weight, weight);
        }
    }

    /// The sum over all ranks. A collective call.
    ///
    /// # Errors
    /// Fails if the collective fails.
    pub fn reduce(self, group: &ProcessGroup) -> Result<Self, Error> {
        let mut both = [self.sum, self.weight];
        group.all_reduce(&mut both, ReduceOp::Sum)?;
        let [sum, weight] = both;
        Ok(Self { sum, weight })
    }

    /// The mean; `None` if nothing has been added.
    pub fn mean(&self) -> Option<f64> {
        (self.weight != 0.0).then(|| self.sum / self.weight)
    }

    /// Sum of all values.
    pub fn sum(&self) -> f64 {
        self.sum
    }

    /// Sum of all weights.
    pub fn weight(&self) -> f64 {
        self.weight
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::GroupOptions;

    #[test]
    fn unequal_shares_count_by_their_weight() {
        let groups = ProcessGroup::in_process(3, &GroupOptions::default()).unwrap();
        let means = std::thread::scope(|scope| {
            let rank = |(rank, group): (usize, ProcessGroup)| {
                scope.spawn(move || {
                    let mut mean = WeightedMean::default();
                    // Rank 0 has no samples.
                    mean.add_mean([f64::NAN, 2.0, 5.0][rank], [0.0, 1.0, 3.0][rank]);
                    mean.reduce(&group).unwrap()
                })
            };
            let threads: Vec<_> = groups.into_iter().enumerate().map(rank).collect();
            threads
                .into_iter()
                .map(|thread| thread.join().unwrap())
                .collect::<Vec<_>>()
        });
        for mean in means {
            assert_eq!((mean.sum(), mean.weight()), (17.0, 4.0));
            assert_eq!(mean.mean(), Some(4.25));
        }
        assert_eq!(WeightedMean::default().mean(), None);
    }
}
