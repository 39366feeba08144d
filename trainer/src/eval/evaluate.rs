//! Evaluation by all ranks together, exact at any world size: every sample counts once.

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

/// Batches of an evaluation from one look at whether it should go on to the next.
const LOOK_EVERY: i64 = 4;

/// What an evaluation finds.
pub(crate) type Evaluated = (Evaluation, Details);

/// What `evaluate` finds in `precision`; in `f32` where that is f16 and a model's numbers may have
/// been too large for it, as they may be in a training, whose steps are then left out. On all ranks
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

/// What a model is evaluated on, and by whom.
#[derive(Clone, Copy)]
pub(crate) struct Evaluator<'a> {
    /// The data set of the loader.
    pub dataset: &'a dyn Dataset,
    /// Reads the samples.
    pub loader: &'a Loader,
    /// The samples, where they lie on the device.
    pub resident: Option<&'a DeviceData>,
    /// This rank's part of them.
    pub sampler: &'a EvalSampler,
    /// What computes.
    pub device: &'a Device,
    /// In which number format: that of the images that the model is given.
    pub precision: Precision,
    /// The ranks.
    pub group: &'a ProcessGroup,
    /// A forward pass is a collective call, so all ranks have to make as many.
    pub together: bool,
}

impl Evaluator<'_> {
    /// Whether any rank wants to end, now. A collective call.
    fn any(&self, wants: bool) -> Result<bool, TrainError> {
        let mut any = [i64::from(wants)];
        self.group.all_reduce(&mut any, ReduceOp::Max)?;
        Ok(any[0] > 0)
    }

    /// Evaluates `model`, which must not record gradients, and counts which classes are taken for
    /// which. Every rank takes its own part of the samples; all get the result for the whole, and
    /// rank 0 sample predictions too. Gives nothing if `unless` becomes true on any rank meanwhile:
    /// all look after the same batches, and end together.
    ///
    /// # Errors
    /// If a sample cannot be read or a rank fails.
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
        // A GPU gets a batch before the scores of the one before are waited for.
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

    /// A forward pass of nothing, where it is a collective call and other ranks have a batch more.
    fn keep_company<M: ImageClassifier>(&self, model: &M) {
        if self.together {
            let shape = self.dataset.shape();
            let size = [1, shape.channels, shape.height, shape.width];
            let images = Tensor::<4>::zeros(size, self.device);
            drop(model.forward(images.cast(self.precision.compute_dtype())));
        }
    }
}

/// A batch whose scores may still be on their way.
struct Scored {
    labels: Vec<i32>,
    indices: Vec<usize>,
    classes: usize,
    /// \[samples × classes\].
    scores: Reading,
}

/// Counts in integers, and sums in double precision of losses in single precision, which are exact
/// but for the last digits: nothing that is compared depends on who summed what.
struct Sums {
    loss: f64,
    correct: i64,
    /// Right ones among the most likely.
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

    /// Waits for the scores of a batch.
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

    /// What all ranks have found, for all of them. A collective call.
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

/// What the device has computed for an evaluation.
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
    /// Not of any rank's share a divisor.
    const BATCH: usize = 6;

    fn data() -> Arc<dyn Dataset> {
        Arc::new(Digits::new(Split::Test, IMAGES, 1))
    }

    fn model() -> Cnn {
        let config = CnnConfig::new().with_filters([4, 8]).with_hidden(16);
        config.init(&Device::flex()).unwrap()
    }

    /// By the definitions, of all images at once.
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
