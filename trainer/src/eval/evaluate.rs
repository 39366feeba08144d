//! Evaluation on all ranks together, exact at any world size: every item counts once.

use burn::tensor::{Device, ExecutionError, TensorData};
use burn_dist::parallel::Precision;
use burn_dist::{ProcessGroup, ReduceOp};

use crate::error::TrainError;
use crate::system::output::complain;
use crate::task::{Evaluation, Pass, Sums, Task, not_computed};

/// Batches between two checks whether to go on.
const LOOK_EVERY: usize = 4;

/// Result of an evaluation.
pub(crate) type Evaluated<D> = (Evaluation, D);

/// Evaluates in `precision`, and again in `f32` if f16 overflowed.
///
/// Training skips steps that overflow in f16, so a model may exceed its range. All ranks decide
/// alike.
pub(crate) fn within_range<D>(
    precision: Precision,
    group: &ProcessGroup,
    evaluate: impl Fn(Precision) -> Result<Option<Evaluated<D>>, TrainError>,
) -> Result<Option<Evaluated<D>>, TrainError> {
    let evaluated = evaluate(precision)?;
    let is_finite = |(evaluation, _): &Evaluated<D>| evaluation.loss.is_finite();
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

/// Task, device and ranks of an evaluation.
#[derive(Clone, Copy)]
pub(crate) struct Evaluator<'a, T> {
    /// The task, with this rank's part of the items.
    pub task: &'a T,
    /// The device to evaluate on.
    pub device: &'a Device,
    /// Number format of the forward pass.
    pub precision: Precision,
    /// The ranks.
    pub group: &'a ProcessGroup,
    /// Whether a forward pass is a collective call, so that all ranks must make the same number.
    pub together: bool,
}

impl<T: Task> Evaluator<'_, T> {
    /// Whether any rank asks to end. A collective call.
    fn any(&self, wants: bool) -> Result<bool, TrainError> {
        let mut any = [i64::from(wants)];
        self.group.all_reduce(&mut any, ReduceOp::Max)?;
        Ok(any[0] > 0)
    }

    /// Evaluates `model`, which must not record gradients.
    ///
    /// Every rank takes its own part of the items. All ranks get the overall result; only rank 0
    /// gets all details. Returns `None` if `unless` becomes true on any rank: all ranks check after
    /// the same batches and end together.
    ///
    /// # Errors
    /// Fails if an item cannot be read or a rank fails.
    pub fn evaluate(
        &self,
        model: &T::Model,
        unless: Option<&dyn Fn() -> bool>,
    ) -> Result<Option<Evaluated<T::Details>>, TrainError> {
        let task = self.task;
        let (count, mut batches) = task.eval_batches();
        let mut passes = [count as i64];
        self.group.all_reduce(&mut passes, ReduceOp::Max)?;
        let pass = Pass {
            device: self.device,
            dtype: self.precision.compute_dtype(),
        };
        let mut sums = task.sums();
        // Queue the next batch on a GPU before waiting for the last scores.
        let mut before = None;
        for number in 0..usize::try_from(passes[0]).unwrap_or_default() {
            if let Some(unless) = unless
                && number % LOOK_EVERY == 0
                && self.any(unless())?
            {
                return Ok(None);
            }
            let scored = match batches.next() {
                Some(batch) => Some(task.score(model, batch?, pass)?),
                None => {
                    // Other ranks have one more batch, and may need this rank for its pass.
                    if self.together {
                        drop(task.score(model, task.blank(1), pass)?);
                    }
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
        sums.reduce(self.group)?;
        let evaluation = sums.finish();
        let details = task.details(sums, &evaluation, self.group)?;
        Ok(Some((evaluation, details)))
    }
}

/// Converts a device error in an evaluation.
pub(crate) fn read(data: Result<TensorData, ExecutionError>) -> Result<TensorData, TrainError> {
    data.map_err(|error| not_computed(error.to_string()))
}

#[cfg(test)]
mod tests {
    use std::thread;

    use burn::module::Module;
    use burn::tensor::activation::log_softmax;
    use burn_dist::GroupOptions;
    use burn_dist::parallel::autocast;
    use datasets::{Dataset, Digits, EvalSampler, Loader, Split};
    use models::{Cnn, CnnConfig};

    use super::*;
    use crate::config::Loaded;
    use crate::data::batch::to_tensors;
    use crate::task::classification::details::Details;
    use crate::task::classification::{Classification, Images};
    use crate::task::open::{Input, Opening, Place};

    /// More than one batch, and no multiple of the ranks.
    const IMAGES: usize = 137;

    fn data() -> std::sync::Arc<dyn Dataset> {
        std::sync::Arc::new(Digits::new(Split::Test, IMAGES, 1))
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
        Evaluation::new(loss, IMAGES as u64, [("accuracy", correct), ("top5", top)])
    }

    fn evaluated(
        model: &Cnn,
        group: &ProcessGroup,
        precision: Precision,
        on_device: bool,
    ) -> Evaluated<Details> {
        let sets = [
            format!("data.test_samples={IMAGES}"),
            format!("data.on_device={on_device}"),
            "data.train_samples=12".to_owned(),
            "train.batch_size=12".to_owned(),
        ];
        let loaded = Loaded::load("digits.toml", &sets).unwrap();
        let (config, device) = (&loaded.config, Device::flex());
        let batching = loaded.batching(group.size()).unwrap();
        let ranks = (group.rank(), group.size());
        let mut images = Images::open(&Opening::to_train(config, batching, ranks)).unwrap();
        let place = Place {
            plain: &device,
            training: &device,
            memory: None,
        };
        images.bring(&place).unwrap();
        let task = Classification::new(images);
        let evaluator = Evaluator {
            task: &task,
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
                for name in ["accuracy", "top5"] {
                    let [found, expected] = [found, &expected].map(|e| e.metric(name).unwrap());
                    assert!((found - expected).abs() < 1e-9, "{name}");
                }
            }
            let counted: i64 = details.per_class.iter().map(|class| class.samples).sum();
            assert_eq!(counted, IMAGES as i64);
            assert!(ranks.iter().all(|(evaluation, _)| evaluation == found));
        }
    }
}
