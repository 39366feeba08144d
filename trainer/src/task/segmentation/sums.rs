//! Sums of an evaluation: losses and a confusion matrix of pixels.

use burn_dist::{ProcessGroup, ReduceOp};

use super::IGNORED;
use crate::error::TrainError;
use crate::task::reading::Reading;
use crate::task::{self, Evaluation, LossSum, not_computed};

/// A batch whose results may still be in flight.
pub struct Scored {
    /// Loss of each pixel, then its predicted class.
    pub(super) numbers: Reading,
    /// Class of each pixel.
    pub(super) labels: Vec<u8>,
}

/// Losses in f32 are summed in f64, pixels are counted.
#[derive(Debug)]
pub struct Sums {
    loss: LossSum,
    classes: usize,
    /// Pixels of the class of the row that were predicted as that of the column.
    confusion: Vec<i64>,
}

impl Sums {
    pub(super) fn new(classes: usize) -> Self {
        Self {
            loss: LossSum::default(),
            classes,
            confusion: vec![0; classes * classes],
        }
    }

    fn count(&self, label: usize, predicted: usize) -> i64 {
        let cell = self.confusion.get(label * self.classes + predicted);
        cell.copied().unwrap_or_default()
    }

    /// Right predictions of a class, and pixels that have or were predicted as that class.
    fn overlap(&self, class: usize) -> (i64, i64) {
        let right = self.count(class, class);
        let all = 0..self.classes;
        let either: i64 = all
            .map(|other| self.count(class, other) + self.count(other, class))
            .sum();
        (right, either - right)
    }
}

impl task::Sums for Sums {
    type Scored = Scored;

    fn add(&mut self, batch: Scored) -> Result<(), TrainError> {
        let numbers = batch.numbers.wait().map_err(not_computed)?;
        let expected = 2 * batch.labels.len();
        if numbers.len() != expected {
            let got = numbers.len();
            return Err(not_computed(format!(
                "expected {expected} numbers, got {got}"
            )));
        }
        let (losses, predicted) = numbers.split_at(batch.labels.len());
        let counted = |(label, loss): (&u8, &f32)| (*label != IGNORED).then(|| f64::from(*loss));
        let all = batch.labels.iter().zip(losses);
        self.loss.add(all.filter_map(counted));
        for (label, predicted) in batch.labels.iter().zip(predicted) {
            if *label == IGNORED {
                continue;
            }
            let cell = usize::from(*label) * self.classes + *predicted as usize;
            if let Some(count) = self.confusion.get_mut(cell) {
                *count += 1;
            }
        }
        Ok(())
    }

    fn reduce(&mut self, group: &ProcessGroup) -> Result<(), TrainError> {
        self.loss.reduce(group)?;
        group.all_reduce(&mut self.confusion, ReduceOp::Sum)?;
        Ok(())
    }

    /// The mean IoU is over the classes that a pixel has or was predicted as.
    fn finish(&self) -> Evaluation {
        let pixels: i64 = self.confusion.iter().sum();
        let overlaps: Vec<_> = (0..self.classes).map(|class| self.overlap(class)).collect();
        let right: i64 = overlaps.iter().map(|(right, _)| right).sum();
        let present: Vec<f64> = overlaps
            .iter()
            .filter(|(_, either)| *either > 0)
            .map(|(right, either)| *right as f64 / *either as f64)
            .collect();
        let mean = |sum: f64, count: usize| sum / count.max(1) as f64;
        let metrics = [
            ("mean_iou", mean(present.iter().sum(), present.len())),
            ("pixel_accuracy", right as f64 / pixels.max(1) as f64),
        ];
        let loss = self.loss.total() / pixels.max(1) as f64;
        Evaluation::new(loss, pixels.unsigned_abs(), metrics)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::task::Sums as _;

    #[test]
    fn metrics_are_those_of_the_pixels_that_count() {
        let mut sums = Sums::new(4);
        let losses = [1.0, 2.0, 3.0, 100.0, 2.0];
        let predicted = [0.0, 1.0, 0.0, 2.0, 1.0];
        sums.add(Scored {
            numbers: Reading::Known([losses, predicted].concat()),
            labels: vec![0, 1, 1, IGNORED, 1],
        })
        .unwrap();
        let evaluation = sums.finish();
        assert_eq!((evaluation.loss, evaluation.samples), (2.0, 4));
        // Class 0: one of two pixels; class 1: two of three; the others have none.
        let iou = (1.0 / 2.0 + 2.0 / 3.0) / 2.0;
        assert!((evaluation.metric("mean_iou").unwrap() - iou).abs() < 1e-12);
        assert_eq!(evaluation.metric("pixel_accuracy"), Some(0.75));
    }
}
