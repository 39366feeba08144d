//! Evaluation by all ranks together, exact at any world size: every sample counts once.

use burn::tensor::Device;
use burn_dist::{ProcessGroup, ReduceOp};
use datasets::{EvalSampler, Loader};
use models::ImageClassifier;
use serde::{Deserialize, Serialize};

use crate::batch::to_tensors;
use crate::error::TrainError;
use crate::loss::cross_entropy;

/// How good a model is on the test images.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Evaluation {
    /// Mean loss over all samples.
    pub loss: f64,
    /// Share of samples whose class was predicted, from 0 to 1.
    pub accuracy: f64,
    /// Samples, over all ranks.
    pub samples: u64,
}

/// Evaluates `model`, which must not record gradients. Every rank takes its own part of the
/// samples; all get the result for the whole.
///
/// # Errors
/// If a sample cannot be read or a rank fails.
pub fn evaluate<M: ImageClassifier>(
    model: &M,
    loader: &Loader,
    sampler: &EvalSampler,
    device: &Device,
    group: &ProcessGroup,
) -> Result<Evaluation, TrainError> {
    // Sums in double precision and counts in integers: nothing depends on who summed what.
    let mut loss = [0f64];
    let mut counts = [0i64; 2];
    for batch in loader.iter(sampler.epoch()) {
        let batch = batch?;
        let expected = batch.labels.clone();
        let (images, targets) = to_tensors(batch, device);
        let logits = model.forward(images);
        let predicted = logits.clone().argmax(1).into_data();
        let losses = cross_entropy(logits, targets.labels).into_data();
        loss[0] += losses.iter::<f64>().sum::<f64>();
        counts[0] += predicted
            .iter::<i64>()
            .zip(&expected)
            .filter(|(predicted, expected)| *predicted == i64::from(**expected))
            .count() as i64;
        counts[1] += expected.len() as i64;
    }
    group.all_reduce(&mut loss, ReduceOp::Sum)?;
    group.all_reduce(&mut counts, ReduceOp::Sum)?;
    let [correct, samples] = counts;
    let share = |value: f64| value / (samples.max(1) as f64);
    Ok(Evaluation {
        loss: share(loss[0]),
        accuracy: share(correct as f64),
        samples: samples.unsigned_abs(),
    })
}
