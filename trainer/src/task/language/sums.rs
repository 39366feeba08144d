//! Sums of an evaluation: the losses of all tokens.

use std::f64::consts::LN_2;

use burn_dist::{ProcessGroup, ReduceOp};

use crate::error::TrainError;
use crate::task::reading::Reading;
use crate::task::{self, Evaluation, LossSum, not_computed};

/// A batch whose losses may still be in flight.
pub struct Scored {
    /// Loss of each token.
    pub(super) losses: Reading,
    /// Whether it counts.
    pub(super) counts: Vec<bool>,
}

/// Losses in f32 are summed in f64.
#[derive(Debug, Default)]
pub struct Sums {
    loss: LossSum,
    tokens: i64,
}

impl task::Sums for Sums {
    type Scored = Scored;

    fn add(&mut self, batch: Scored) -> Result<(), TrainError> {
        let losses = batch.losses.wait().map_err(not_computed)?;
        if losses.len() != batch.counts.len() {
            let (expected, got) = (batch.counts.len(), losses.len());
            return Err(not_computed(format!(
                "expected {expected} losses, got {got}"
            )));
        }
        let counted = losses.into_iter().zip(&batch.counts);
        let counted = counted.filter_map(|(loss, counts)| counts.then_some(f64::from(loss)));
        self.loss.add(counted);
        self.tokens += batch.counts.iter().filter(|counts| **counts).count() as i64;
        Ok(())
    }

    fn reduce(&mut self, group: &ProcessGroup) -> Result<(), TrainError> {
        self.loss.reduce(group)?;
        let mut tokens = [self.tokens];
        group.all_reduce(&mut tokens, ReduceOp::Sum)?;
        [self.tokens] = tokens;
        Ok(())
    }

    fn finish(&self) -> Evaluation {
        let loss = self.loss.total() / self.tokens.max(1) as f64;
        // A token is a byte.
        let metrics = [("perplexity", loss.exp()), ("bits_per_byte", loss / LN_2)];
        Evaluation::new(loss, self.tokens.unsigned_abs(), metrics)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::task::Sums as _;

    #[test]
    fn tokens_that_do_not_count_are_left_out() {
        let mut sums = Sums::default();
        sums.add(Scored {
            losses: Reading::Known(vec![LN_2 as f32, 100.0, 3.0 * LN_2 as f32]),
            counts: vec![true, false, true],
        })
        .unwrap();
        let evaluation = sums.finish();
        assert_eq!(evaluation.samples, 2);
        assert!((evaluation.loss - 2.0 * LN_2).abs() < 1e-6);
        assert!((evaluation.metric("perplexity").unwrap() - 4.0).abs() < 1e-5);
        assert!((evaluation.metric("bits_per_byte").unwrap() - 2.0).abs() < 1e-6);
        let short = Scored {
            losses: Reading::Known(vec![1.0]),
            counts: Vec::new(),
        };
        assert!(sums.add(short).is_err());
    }
}
