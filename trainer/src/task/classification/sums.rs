//! Sums of an evaluation: losses, right predictions, and counts of classes.

use burn_dist::{ProcessGroup, ReduceOp};
use datasets::Dataset;

use super::details::{Details, Tally};
use super::scores::{TOP, cross_entropy, is_among_top, likeliest};
use crate::config::metric::Measure;
use crate::error::TrainError;
use crate::task::reading::Reading;
use crate::task::{self, Evaluation, LossSum, not_computed};

/// Metrics of a classifier of that many classes.
pub(super) fn measures(classes: usize) -> Vec<Measure> {
    let accuracy = Measure::share("accuracy", "accuracy");
    let top5 = (classes > TOP).then(|| Measure::share("top5", "top-5 accuracy"));
    [Some(accuracy), top5].into_iter().flatten().collect()
}

/// A batch whose scores may still be in flight.
pub struct Scored {
    pub(super) labels: Vec<i32>,
    pub(super) indices: Vec<usize>,
    pub(super) classes: usize,
    /// \[samples × classes\].
    pub(super) scores: Reading,
}

/// Sums of an evaluation.
///
/// Counts are integers, and losses in f32 are summed in f64. The sums are exact except for the last
/// digits, so compared values do not depend on how ranks divide the samples.
pub struct Sums {
    loss: LossSum,
    correct: i64,
    /// Samples whose class is among the likeliest.
    top: i64,
    samples: i64,
    tally: Tally,
    classes: usize,
}

impl Sums {
    pub(super) fn new(classes: usize) -> Self {
        Self {
            loss: LossSum::default(),
            correct: 0,
            top: 0,
            samples: 0,
            tally: Tally::new(classes),
            classes,
        }
    }

    /// Adds the counts of classes of the other ranks. A collective call.
    pub(super) fn details(
        self,
        dataset: &dyn Dataset,
        evaluation: &Evaluation,
        group: &ProcessGroup,
    ) -> Result<Details, TrainError> {
        self.tally.gather(dataset, evaluation, group)
    }
}

impl task::Sums for Sums {
    type Scored = Scored;

    fn add(&mut self, batch: Scored) -> Result<(), TrainError> {
        let scores = batch.scores.wait().map_err(not_computed)?;
        let expected = batch.labels.len() * batch.classes;
        if scores.len() != expected {
            let reason = format!("expected {expected} scores, got {}", scores.len());
            return Err(not_computed(reason));
        }
        let mut losses = Vec::with_capacity(batch.labels.len());
        let rows = scores.chunks_exact(batch.classes.max(1));
        for ((scores, &label), &index) in rows.zip(&batch.labels).zip(&batch.indices) {
            self.samples += 1;
            let Ok(label) = usize::try_from(label) else {
                continue;
            };
            let predicted = likeliest(scores);
            losses.push(f64::from(cross_entropy(scores, label) as f32));
            self.correct += i64::from(predicted == label);
            self.top += i64::from(is_among_top(scores, label));
            self.tally.see(index, label, predicted, scores);
        }
        self.loss.add(losses);
        Ok(())
    }

    fn reduce(&mut self, group: &ProcessGroup) -> Result<(), TrainError> {
        let mut counts = [self.correct, self.top, self.samples];
        self.loss.reduce(group)?;
        group.all_reduce(&mut counts, ReduceOp::Sum)?;
        [self.correct, self.top, self.samples] = counts;
        Ok(())
    }

    fn finish(&self) -> Evaluation {
        let share = |value: f64| value / (self.samples.max(1) as f64);
        let mut metrics = vec![("accuracy", share(self.correct as f64))];
        if self.classes > TOP {
            metrics.push(("top5", share(self.top as f64)));
        }
        Evaluation::new(
            share(self.loss.total()),
            self.samples.unsigned_abs(),
            metrics,
        )
    }
}
