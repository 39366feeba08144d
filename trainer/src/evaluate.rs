//! Evaluation by all ranks together, exact at any world size: every sample counts once.

use burn::tensor::{Device, ExecutionError, Tensor, TensorData};
use burn_dist::{ProcessGroup, ReduceOp};
use datasets::{Dataset, EvalSampler, Loader};
use models::ImageClassifier;
use serde::{Deserialize, Serialize};

use crate::batch::to_tensors;
use crate::error::TrainError;
use crate::evaluation_details::{Details, Tally};
use crate::loss::cross_entropy;

/// Batches of an evaluation from one look at whether it should go on to the next.
const LOOK_EVERY: i64 = 4;

/// Among so many classes the right one must be for `top5`.
const TOP: usize = 5;

/// How good a model is on the test images.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Evaluation {
    /// Mean loss over all samples.
    pub loss: f64,
    /// Share of samples whose class was predicted, from 0 to 1.
    pub accuracy: f64,
    /// Share of samples whose class was among the five that were thought most likely; only where
    /// there are more than five.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub top5: Option<f64>,
    /// Samples, over all ranks.
    pub samples: u64,
}

/// What a model is evaluated on, and by whom.
#[derive(Clone, Copy)]
pub struct Evaluator<'a> {
    /// The data set of the loader.
    pub dataset: &'a dyn Dataset,
    /// Reads the samples.
    pub loader: &'a Loader,
    /// This rank's part of them.
    pub sampler: &'a EvalSampler,
    /// What computes.
    pub device: &'a Device,
    /// The ranks.
    pub group: &'a ProcessGroup,
    /// A forward pass is a collective call, so all ranks have to make as many.
    pub together: bool,
}

/// Evaluates `model`, which must not record gradients, and counts which classes are taken for
/// which; `dataset` is that of the loader. Every rank takes its own part of the samples; all get
/// the result for the whole, and rank 0 sample predictions too. `together`: a forward pass is a
/// collective call, so all ranks have to make as many.
///
/// # Errors
/// If a sample cannot be read or a rank fails.
pub fn evaluate<M: ImageClassifier>(
    model: &M,
    dataset: &dyn Dataset,
    loader: &Loader,
    sampler: &EvalSampler,
    device: &Device,
    group: &ProcessGroup,
    together: bool,
) -> Result<(Evaluation, Details), TrainError> {
    let evaluator = Evaluator {
        dataset,
        loader,
        sampler,
        device,
        group,
        together,
    };
    let evaluated = evaluator.sum_up(model, None)?;
    // Nobody could end it.
    evaluated.ok_or_else(|| TrainError::NotComputed {
        what: "an evaluation".to_owned(),
        reason: "it was ended".to_owned(),
    })
}

impl Evaluator<'_> {
    /// As [`evaluate`], but gives nothing if `unless` becomes true on any rank meanwhile. All ranks
    /// look after the same batches, and end together.
    ///
    /// # Errors
    /// If a sample cannot be read or a rank fails.
    pub fn evaluate_unless<M: ImageClassifier>(
        &self,
        model: &M,
        unless: &dyn Fn() -> bool,
    ) -> Result<Option<(Evaluation, Details)>, TrainError> {
        self.sum_up(model, Some(unless))
    }

    /// Whether any rank wants to end, now. A collective call.
    fn any(&self, wants: bool) -> Result<bool, TrainError> {
        let mut any = [i64::from(wants)];
        self.group.all_reduce(&mut any, ReduceOp::Max)?;
        Ok(any[0] > 0)
    }

    fn sum_up<M: ImageClassifier>(
        &self,
        model: &M,
        unless: Option<&dyn Fn() -> bool>,
    ) -> Result<Option<(Evaluation, Details)>, TrainError> {
        let &Self {
            dataset,
            device,
            group,
            ..
        } = self;
        let classes = dataset.class_names().len();
        let mut tally = Tally::new(classes);
        // Sums in double precision and counts in integers: nothing depends on who summed what.
        let mut loss = [0f64];
        let mut counts = [0i64; 3];
        let epoch = self.sampler.epoch();
        let mut passes = [epoch.batches() as i64];
        group.all_reduce(&mut passes, ReduceOp::Max)?;
        let mut batches = self.loader.iter(epoch);
        for pass in 0..passes[0] {
            if let Some(unless) = unless
                && pass % LOOK_EVERY == 0
                && self.any(unless())?
            {
                return Ok(None);
            }
            let Some(batch) = batches.next() else {
                if self.together {
                    let shape = dataset.shape();
                    let size = [1, shape.channels, shape.height, shape.width];
                    drop(model.forward(Tensor::zeros(size, device)));
                }
                continue;
            };
            let batch = batch?;
            let expected = batch.labels.clone();
            let indices = batch.indices.clone();
            let (images, targets) = to_tensors(batch, device);
            let logits = model.forward(images);
            let predicted = read(logits.clone().argmax(1).try_into_data())?;
            let predicted: Vec<i64> = predicted.iter().collect();
            let scores = rows(&logits)?;
            let losses = read(cross_entropy(logits, targets.labels).try_into_data())?;
            loss[0] += losses.iter::<f64>().sum::<f64>();
            for (i, (&predicted, &expected)) in predicted.iter().zip(&expected).enumerate() {
                let Ok(label) = usize::try_from(expected) else {
                    continue;
                };
                counts[0] += i64::from(predicted == i64::from(expected));
                counts[1] += i64::from(is_among_top(scores.row(i), label));
                if let Some(index) = indices.get(i) {
                    tally.see(*index, label, predicted, scores.row(i));
                }
            }
            counts[2] += expected.len() as i64;
        }
        group.all_reduce(&mut loss, ReduceOp::Sum)?;
        group.all_reduce(&mut counts, ReduceOp::Sum)?;
        let [correct, top, samples] = counts;
        let share = |value: f64| value / (samples.max(1) as f64);
        let evaluation = Evaluation {
            loss: share(loss[0]),
            accuracy: share(correct as f64),
            top5: (classes > TOP).then(|| share(top as f64)),
            samples: samples.unsigned_abs(),
        };
        let details = tally.gather(dataset, &evaluation, group)?;
        Ok(Some((evaluation, details)))
    }
}

/// Logits on the host.
struct Rows {
    values: Vec<f32>,
    width: usize,
}

impl Rows {
    fn row(&self, index: usize) -> &[f32] {
        let start = index.saturating_mul(self.width);
        let end = start.saturating_add(self.width);
        self.values.get(start..end).unwrap_or_default()
    }
}

fn rows(logits: &Tensor<2>) -> Result<Rows, TrainError> {
    let [_, width] = logits.dims();
    let data = read(logits.clone().try_into_data())?;
    Ok(Rows {
        values: data.iter().collect(),
        width,
    })
}

/// What the device has computed for an evaluation.
pub(crate) fn read(data: Result<TensorData, ExecutionError>) -> Result<TensorData, TrainError> {
    data.map_err(|error| TrainError::NotComputed {
        what: "an evaluation".to_owned(),
        reason: error.to_string(),
    })
}

/// Whether fewer than five classes have a higher score; of equal ones the first counts as higher.
fn is_among_top(scores: &[f32], label: usize) -> bool {
    let Some(own) = scores.get(label) else {
        return false;
    };
    let higher = |(class, score): (usize, &f32)| score > own || (score == own && class < label);
    // What is not a number is above nothing: it must not count as a success.
    !own.is_nan()
        && scores
            .iter()
            .enumerate()
            .filter(|pair| higher(*pair))
            .count()
            < TOP
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_five_most_likely_classes_count() {
        let scores = [0.1, 0.9, 0.8, 0.7, 0.6, 0.5, 0.1];
        let among: Vec<usize> = (0..scores.len())
            .filter(|label| is_among_top(&scores, *label))
            .collect();
        assert_eq!(among, [1, 2, 3, 4, 5]);
        assert!(is_among_top(&[0.0; 7], 4));
        assert!(!is_among_top(&[0.0; 7], 5));
        assert!(!is_among_top(&[f32::NAN; 7], 0));
        assert!(!is_among_top(&[], 0));
    }
}
