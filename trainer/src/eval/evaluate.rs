//! Evaluation on all ranks together, exact at any world size: every sample counts once.

use burn::tensor::{Device, ExecutionError, FloatDType, Tensor, TensorData};
use burn_dist::parallel::Precision;
use burn_dist::{ProcessGroup, ReduceOp};
use datasets::{Dataset, EvalSampler, Loader};
use models::ImageClassifier;

use crate::data::batch::{Batches, EvalBatch};
use crate::data::device_data::DeviceData;
use crate::error::TrainError;
use crate::eval::details::{Details, Tally};
use crate::eval::evaluation::Evaluation;
use crate::eval::reading::Reading;
use crate::eval::scores::{TOP, cross_entropy, is_among_top, likeliest};
use crate::system::output::complain;

/// Batches between two checks whether to go on.
const LOOK_EVERY: i64 = 4;

/// Result of an evaluation.
pub(crate) type Evaluated = (Evaluation, Details);

/// Evaluates in `precision`, and again in `f32` if f16 overflowed.
///
/// Training skips steps that overflow in f16, so a model may exceed its range. All ranks decide
/// alike.
pub(crate) fn within_range(
    precision: Precision,
    group: &ProcessGroup,
    evaluate: impl Fn(Precision) -> Result<Option<Evaluated>, TrainError>,
) -> Result<Option<Evaluated>, TrainError> {
    let evaluated = evaluate(precision)?;
    let is_finite = |(evaluation, _): &Evaluated| evaluation.loss.is_finite();
    if precision != Precision::F16 || evaluated.as_ref().is_none_or(is_finite) {
        return Ok(evaluated);
    }
    if group.rank() == 0 {
        complain(
            "warning: evaluation overflowed in f16 and is repeated in f32; train.eval_precision = \
             \"f32\" avoids this",
        );
    }
    evaluate(Precision::F32)
}

/// Data, device and ranks of an evaluation.
#[derive(Clone, Copy)]
pub(crate) struct Evaluator<'a> {
    /// The data set of the loader.
    pub dataset: &'a dyn Dataset,
    /// Reads the samples.
    pub loader: &'a Loader,
    /// The samples, if they are on the device.
    pub resident: Option<&'a DeviceData>,
    /// This rank's part of the samples.
    pub sampler: &'a EvalSampler,
    /// The device to evaluate on.
    pub device: &'a Device,
    /// Number format of the images, and so of the forward pass.
    pub precision: Precision,
    /// The ranks.
    pub group: &'a ProcessGroup,
    /// Whether a forward pass is a collective call, so that all ranks must make the same number.
    pub together: bool,
}

impl Evaluator<'_> {
    /// Whether any rank asks to end. A collective call.
    fn any(&self, wants: bool) -> Result<bool, TrainError> {
        let mut any = [i64::from(wants)];
        self.group.all_reduce(&mut any, ReduceOp::Max)?;
        Ok(any[0] > 0)
    }

    /// Evaluates `model`, which must not record gradients.
    ///
    /// Every rank takes its own part of the samples. All ranks get the overall result; only rank 0
    /// gets sample predictions. Returns `None` if `unless` becomes true on any rank: all ranks
    /// check after the same batches and end together.
    ///
    /// # Errors
    /// Fails if a sample cannot be read or a rank fails.
    pub fn evaluate<M: ImageClassifier>(
        &self,
        model: &M,
        unless: Option<&dyn Fn() -> bool>,
    ) -> Result<Option<Evaluated>, TrainError> {
        let epoch = self.sampler.epoch();
        let mut passes = [epoch.batches() as i64];
        self.group.all_reduce(&mut passes, ReduceOp::Max)?;
        let mut batches = Batches::new(self.loader, self.resident, epoch);
        let mut sums = Sums::new(self.dataset.class_names().len());
        // Queue the next batch on a GPU before waiting for the last scores.
        let mut before: Option<Scored> = None;
        for pass in 0..passes[0] {
            if let Some(unless) = unless
                && pass % LOOK_EVERY == 0
                && self.any(unless())?
            {
                return Ok(None);
            }
            let scored = match batches.next_to_evaluate(self.device) {
                Some(batch) => Some(self.score(model, batch?)?),
                None => {
                    self.keep_company(model);
                    None
                }
            };
            if let Some(before) = std::mem::replace(&mut before, scored) {
                sums.add(before)?;
            }
        }
        if let Some(last) = before {
            sums.add(last)?;
        }
        sums.over_ranks(self.dataset, self.group).map(Some)
    }

    fn score<M: ImageClassifier>(&self, model: &M, batch: EvalBatch) -> Result<Scored, TrainError> {
        let images = batch.images.cast(self.precision.compute_dtype());
        let logits = model.forward(images).cast(FloatDType::F32);
        let [_, classes] = logits.dims();
        Ok(Scored {
            labels: batch.labels,
            indices: batch.indices,
            classes,
            scores: Reading::start(vec![logits.flatten(0, 1)]).map_err(not_computed)?,
        })
    }

    /// Makes an empty forward pass. Needed if it is a collective call and other ranks have one more
    /// batch.
    fn keep_company<M: ImageClassifier>(&self, model: &M) {
        if self.together {
            let shape = self.dataset.shape();
            let size = [1, shape.channels, shape.height, shape.width];
            let images = Tensor::<4>::zeros(size, self.device);
            drop(model.forward(images.cast(self.precision.compute_dtype())));
        }
    }
}

/// A batch whose scores may still be in flight.
struct Scored {
    labels: Vec<i32>,
    indices: Vec<usize>,
    classes: usize,
    /// \[samples × classes\].
    scores: Reading,
}

/// Sums of an evaluation.
///
/// Counts are integers, and losses in f32 are summed in f64. The sums are exact except for the last
/// digits, so compared values do not depend on how ranks divide the samples.
struct Sums {
    loss: f64,
    correct: i64,
    /// Samples whose class is among the likeliest.
    top: i64,
    samples: i64,
    tally: Tally,
    classes: usize,
}

impl Sums {
    fn new(classes: usize) -> Self {
        Self {
            loss: 0.0,
            correct: 0,
            top: 0,
            samples: 0,
            tally: Tally::new(classes),
            classes,
        }
    }

    /// Waits for the scores of a batch and adds them.
    fn add(&mut self, batch: Scored) -> Result<(), TrainError> {
        let scores = batch.scores.wait().map_err(not_computed)?;
        let expected = batch.labels.len() * batch.classes;
        if scores.len() != expected {
            let reason = format!("expected {expected} scores, got {}", scores.len());
            return Err(not_computed(reason));
        }
        let rows = scores.chunks_exact(batch.classes.max(1));
        for ((scores, &label), &index) in rows.zip(&batch.labels).zip(&batch.indices) {
            self.samples += 1;
            let Ok(label) = usize::try_from(label) else {
                continue;
            };
            let predicted = likeliest(scores);
            self.loss += f64::from(cross_entropy(scores, label) as f32);
            self.correct += i64::from(predicted == label);
            self.top += i64::from(is_among_top(scores, label));
            self.tally.see(index, label, predicted, scores);
        }
        Ok(())
    }

    /// Combines the results of all ranks. A collective call.
    fn over_ranks(
        self,
        dataset: &dyn Dataset,
        group: &ProcessGroup,
    ) -> Result<Evaluated, TrainError> {
        let mut loss = [self.loss];
        let mut counts = [self.correct, self.top, self.samples];
        group.all_reduce(&mut loss, ReduceOp::Sum)?;
        group.all_reduce(&mut counts, ReduceOp::Sum)?;
        let [correct, top, samples] = counts;
        let share = |value: f64| value / (samples.max(1) as f64);
        let evaluation = Evaluation {
            loss: share(loss[0]),
            accuracy: share(correct as f64),
            top5: (self.classes > TOP).then(|| share(top as f64)),
            samples: samples.unsigned_abs(),
        };
        let details = self.tally.gather(dataset, &evaluation, group)?;
        Ok((evaluation, details))
    }
}

/// Converts a device error in an evaluation.
pub(crate) fn read(data: Result<TensorData, ExecutionError>) -> Result<TensorData, TrainError> {
    data.map_err(|error| not_computed(error.to_string()))
}

pub(crate) fn not_computed(reason: String) -> TrainError {
    TrainError::NotComputed {
        what: "an evaluation".to_owned(),
        reason,
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::thread;

    use burn::module::Module;
    use burn::tensor::activation::log_softmax;
    use burn_dist::GroupOptions;
    use burn_dist::parallel::autocast;
    use datasets::{Digits, Split};
    use models::{Cnn, CnnConfig};

    use super::*;
    use crate::data::batch::to_tensors;

    const IMAGES: usize = 37;
    /// Divides no rank's share.
    const BATCH: usize = 6;

    fn data() -> Arc<dyn Dataset> {
        Arc::new(Digits::new(Split::Test, IMAGES, 1))
    }

    fn model() -> Cnn {
        let config = CnnConfig::new().with_filters([4, 8]).with_hidden(16);
        config.init(&Device::flex()).unwrap()
    }

    /// The metrics by their definitions, over all images at once.
    fn expected(model: &Cnn) -> Evaluation {
        let sampler = EvalSampler::new(IMAGES, IMAGES, 0, 1).unwrap();
        let mut batches = Loader::new(data()).unwrap().iter(sampler.epoch());
        let batch = batches.next().unwrap().unwrap();
        let labels = batch.labels.clone();
        let (images, _) = to_tensors(batch, &Device::flex());
        let scores = log_softmax(model.forward(images), 1).into_data();
        let scores: Vec<f32> = scores.try_to_vec().unwrap();
        let [mut loss, mut correct, mut top] = [0.0; 3];
        for (scores, label) in scores.chunks(10).zip(labels) {
            let own = scores[label as usize];
            let above = scores.iter().filter(|score| **score > own).count();
            loss -= f64::from(own) / IMAGES as f64;
            correct += f64::from(u8::from(above == 0)) / IMAGES as f64;
            top += f64::from(u8::from(above < 5)) / IMAGES as f64;
        }
        Evaluation {
            loss,
            accuracy: correct,
            top5: Some(top),
            samples: IMAGES as u64,
        }
    }

    fn evaluated(
        model: &Cnn,
        group: &ProcessGroup,
        precision: Precision,
        on_device: bool,
    ) -> Evaluated {
        let (dataset, device) = (data(), Device::flex());
        let loader = Loader::new(dataset.clone()).unwrap();
        let upload = || DeviceData::upload(dataset.as_ref(), &loader, &device).unwrap();
        let resident = on_device.then(upload);
        let evaluator = Evaluator {
            dataset: dataset.as_ref(),
            loader: &loader,
            resident: resident.as_ref(),
            sampler: &EvalSampler::new(IMAGES, BATCH, group.rank(), group.size()).unwrap(),
            device: &device,
            precision,
            group,
            together: false,
        };
        let model = autocast(model.valid(), precision).unwrap();
        evaluator.evaluate(&model, None).unwrap().unwrap()
    }

    #[test]
    fn every_sample_counts_once_on_any_number_of_ranks() {
        let model = model();
        let expected = expected(&model);
        let cases = [
            (Precision::F32, false, 1e-5),
            (Precision::F32, true, 1e-5),
            (Precision::Bf16, false, 0.02),
        ];
        for (size, (precision, on_device, tolerance)) in [1, 3]
            .into_iter()
            .flat_map(|size| cases.map(|case| (size, case)))
        {
            let groups = ProcessGroup::in_process(size, &GroupOptions::default()).unwrap();
            let ranks: Vec<_> = thread::scope(|scope| {
                let model = &model;
                let evaluate = |group| move || evaluated(model, &group, precision, on_device);
                let ranks: Vec<_> = groups
                    .into_iter()
                    .map(|group| scope.spawn(evaluate(group)))
                    .collect();
                ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
            });
            let (found, details) = &ranks[0];
            assert!((found.loss - expected.loss).abs() < tolerance, "{found:?}");
            assert_eq!(found.samples, expected.samples);
            if precision == Precision::F32 {
                assert!((found.accuracy - expected.accuracy).abs() < 1e-9);
                assert!((found.top5.unwrap() - expected.top5.unwrap()).abs() < 1e-9);
            }
            let counted: i64 = details.per_class.iter().map(|class| class.samples).sum();
            assert_eq!(counted, IMAGES as i64);
            assert!(ranks.iter().all(|(evaluation, _)| evaluation == found));
        }
    }
}
