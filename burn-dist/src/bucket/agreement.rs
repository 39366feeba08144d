//! Facts that ranks tell each other at the end of a step, in a maximum that they take anyway.

/// Bytes of a learning rate and of a weight.
const WORD: usize = 8;

/// A rank's words, as bytes. The maximum over all ranks tells everything.
///
/// The first bytes are a learning rate and its complement. The largest byte and the largest
/// complement are complements if and only if all ranks have the same byte. A number of reads
/// follows in the same way. In a weighted step, a weight of each rank or virtual rank follows.
/// Every rank fills in its own and leaves zeros for the others.
pub(crate) struct Agreement(Vec<u8>);

/// The words of all ranks.
pub(crate) struct Agreed {
    /// Whether all learning rates are equal, bit by bit.
    pub(crate) on_rate: bool,
    /// Whether all ranks have read the same number of parameters in evaluations.
    pub(crate) on_reads: bool,
    /// The weight of each rank or virtual rank; empty if the step is not weighted.
    pub(crate) weights: Vec<f64>,
}

impl Agreement {
    /// All ranks are to step with the same learning rate, after the same number of `reads` of
    /// parameters in evaluations.
    pub(crate) fn on(learning_rate: f64, reads: u64) -> Self {
        let words = [learning_rate.to_le_bytes(), reads.to_le_bytes()];
        let pairs = words.map(|word| [word, word.map(|byte| !byte)]);
        Self(pairs.as_flattened().concat())
    }

    /// Adds this rank's `weights`, which begin at number `first` of `count`.
    pub(crate) fn with_weights(mut self, weights: &[f64], (first, count): (usize, usize)) -> Self {
        let own = |at: usize| at.checked_sub(first).and_then(|at| weights.get(at));
        let all = (0..count).map(|at| own(at).copied().unwrap_or(0.0));
        self.0.extend(all.flat_map(f64::to_le_bytes));
        self
    }

    /// The bytes that take part in the maximum.
    pub(super) fn bytes(&self) -> &[u8] {
        &self.0
    }
}

impl Agreed {
    /// Reads the maximum over all ranks.
    pub(super) fn of(maximum: &[u8]) -> Self {
        let mut words = maximum.chunks_exact(WORD);
        let mut word = || words.next()?.try_into().ok();
        let mut agree = || match (word(), word()) {
            (Some(most), Some(least)) => {
                let (most, least): ([u8; WORD], [u8; WORD]) = (most, least);
                most.iter().zip(&least).all(|(most, not)| *most == !not)
            }
            _ => false,
        };
        let (on_rate, on_reads) = (agree(), agree());
        let weights = std::iter::from_fn(word).map(f64::from_le_bytes).collect();
        Self {
            on_rate,
            on_reads,
            weights,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn maximum(all: &[Agreement]) -> Vec<u8> {
        let mut maximum = vec![0; all[0].bytes().len()];
        for said in all {
            for (most, own) in maximum.iter_mut().zip(said.bytes()) {
                *most = (*most).max(*own);
            }
        }
        maximum
    }

    #[test]
    fn rates_agree_if_they_are_equal_to_the_bit() {
        let agreed = |rates: &[f64]| {
            let all: Vec<_> = rates.iter().map(|rate| Agreement::on(*rate, 0)).collect();
            Agreed::of(&maximum(&all)).on_rate
        };
        assert!(agreed(&[0.1]) && agreed(&[1e-3, 1e-3, 1e-3]));
        assert!(!agreed(&[0.1, 0.1f64.next_up()]) && !agreed(&[0.0, -0.0]));
        assert!(!agreed(&[0.1, 0.2, 0.1]) && !Agreed::of(&[]).on_rate);
    }

    #[test]
    fn reads_agree_if_they_are_equally_many() {
        let agreed = |reads: [u64; 2]| {
            let all = reads.map(|reads| Agreement::on(0.1, reads));
            Agreed::of(&maximum(&all))
        };
        let equal = agreed([300, 300]);
        assert!(equal.on_rate && equal.on_reads);
        let other = agreed([300, 257]);
        assert!(other.on_rate && !other.on_reads);
    }

    #[test]
    fn weights_arrive_in_the_order_of_the_ranks() {
        let weights = [3.5, 0.0, 1e30];
        let say =
            |rank: usize| Agreement::on(0.1, 0).with_weights(&weights[rank..=rank], (rank, 3));
        let agreed = Agreed::of(&maximum(&[say(0), say(1), say(2)]));
        assert!(agreed.on_rate);
        assert_eq!(agreed.weights, weights);
        assert!(Agreed::of(Agreement::on(0.1, 0).bytes()).weights.is_empty());
    }
}
