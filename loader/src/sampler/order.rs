//! The order of the samples in an epoch, before ranks share it.

use std::sync::Arc;

use crate::SamplerError;
use crate::random::{Purpose, Stream};

/// How an epoch's samples are chosen.
#[derive(Debug, Clone)]
pub(super) enum Order {
    Sequential,
    Shuffled,
    /// Sums of the weights up to and including each sample.
    Weighted(Arc<[f64]>),
}

impl Order {
    pub(super) fn weighted(weights: &[f64]) -> Result<Self, SamplerError> {
        let wrong = |reason| Err(SamplerError::Weights { reason });
        let mut sum = 0.0;
        let mut sums = Vec::with_capacity(weights.len());
        for (index, &weight) in weights.iter().enumerate() {
            if !(weight.is_finite() && weight >= 0.0) {
                return wrong(format!("the weight of sample {index} is {weight}"));
            }
            sum += weight;
            sums.push(sum);
        }
        if !(sum.is_finite() && sum > 0.0) {
            return wrong(format!("the sum of {} weights is {sum}", weights.len()));
        }
        Ok(Order::Weighted(sums.into()))
    }

    /// Number of samples in the data set, if the order knows it.
    pub(super) fn samples(&self) -> Option<usize> {
        match self {
            Order::Weighted(sums) => Some(sums.len()),
            Order::Sequential | Order::Shuffled => None,
        }
    }

    /// The `len` samples of an epoch. The second number says how often the sample was chosen
    /// before.
    pub(super) fn of_epoch(&self, len: usize, seed: u64, epoch: usize) -> Vec<(usize, u32)> {
        match self {
            Order::Sequential => (0..len).map(|index| (index, 0)).collect(),
            Order::Shuffled => {
                let order = permutation(len, seed, epoch);
                order.into_iter().map(|index| (index, 0)).collect()
            }
            Order::Weighted(sums) => draws(sums, len, seed, epoch),
        }
    }
}

/// `len` draws with replacement. Part of the run's contract, as [`permutation`].
fn draws(sums: &[f64], len: usize, seed: u64, epoch: usize) -> Vec<(usize, u32)> {
    let mut stream = Stream::new(Purpose::Weighted, seed, epoch as u64, 0);
    let total = sums.last().copied().unwrap_or_default();
    // Rounding may put a draw on the total: then it is the last sample with a weight.
    let last = sums.partition_point(|&sum| sum < total);
    let mut drawn = vec![0_u32; sums.len()];
    let draw = |_| {
        let point = stream.unit_f64() * total;
        let index = sums.partition_point(|&sum| sum <= point).min(last);
        let times = drawn.get_mut(index).map_or(0, |times| {
            *times = times.wrapping_add(1);
            times.wrapping_sub(1)
        });
        (index, times)
    };
    (0..len).map(draw).collect()
}

/// A permutation of `0..len`. It is part of the run's contract and must not
/// change, or resumed runs would see samples twice.
pub(super) fn permutation(len: usize, seed: u64, epoch: usize) -> Vec<usize> {
    let mut order: Vec<usize> = (0..len).collect();
    Stream::new(Purpose::Shuffle, seed, epoch as u64, 0).shuffle(&mut order);
    order
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn draws_follow_the_weights() {
        let Order::Weighted(sums) = Order::weighted(&[0.0, 1.0, 0.0, 3.0, 0.0]).unwrap() else {
            panic!("not weighted");
        };
        let mut counts = [0; 5];
        for (index, times) in draws(&sums, 40_000, 7, 3) {
            assert_eq!(times, counts[index]);
            counts[index] += 1;
        }
        assert_eq!((counts[0], counts[2], counts[4]), (0, 0, 0));
        assert!((9_500..10_500).contains(&counts[1]), "{counts:?}");
        assert_ne!(draws(&sums, 50, 7, 3), draws(&sums, 50, 7, 4));
        assert_ne!(draws(&sums, 50, 7, 3), draws(&sums, 50, 8, 3));
    }

    #[test]
    fn draws_never_change() {
        let Order::Weighted(sums) = Order::weighted(&[1.0, 2.0, 0.5]).unwrap() else {
            panic!("not weighted");
        };
        let drawn: Vec<usize> = draws(&sums, 10, 42, 1).iter().map(|draw| draw.0).collect();
        assert_eq!(drawn, [1, 0, 1, 1, 1, 0, 1, 0, 0, 0]);
    }

    #[test]
    fn unusable_weights_are_refused() {
        for (weights, place) in [
            (&[1.0, -1.0][..], "sample 1 is -1"),
            (&[f64::NAN], "sample 0 is NaN"),
            (&[f64::INFINITY], "sample 0 is inf"),
            (&[f64::MAX, f64::MAX], "the sum of 2 weights is inf"),
            (&[0.0, 0.0], "the sum of 2 weights is 0"),
            (&[], "the sum of 0 weights is 0"),
        ] {
            let error = Order::weighted(weights).unwrap_err().to_string();
            assert!(error.contains(place), "{error}");
        }
    }
}
