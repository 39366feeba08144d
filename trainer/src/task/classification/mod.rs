//! Image classification: one class for each image.

pub mod details;
mod few_values;
mod images;
pub(crate) mod objective;
mod scores;
mod sums;

use std::marker::PhantomData;

use burn::tensor::{Device, FloatDType, Tensor};
use burn_dist::ProcessGroup;
use burn_dist::checkpoint::Manifest;
use datasets::{ImageShape, Normalization};
use models::ImageClassifier;
use serde::Deserialize;
use serde_json::Value;

use crate::config::EvalSet;
use crate::config::metric::Measure;
use crate::data::batch::Targets;
use crate::data::class_names::ClassNames;
use crate::data::same_data;
use crate::error::TrainError;
use crate::run::environment::Environment;
use crate::task::reading::Reading;
use crate::task::{
    Difference, Evaluation, Facts, Items, Loss, Pass, Task, Words, fact, not_computed,
};
use details::Details;
pub(crate) use images::Images;
use images::{Batches, HostBatch};
use objective::Objective;
use sums::{Scored, Sums};

/// Keys of facts.
const CLASSES: &str = "classes";
const CLASS_NAMES: &str = "class_names";
const NORMALIZATION: &str = "normalization";

/// Checks that the model of `manifest` was trained for these class names, in this order. Passes if
/// the checkpoint does not know its names.
///
/// # Errors
/// [`TrainError::OtherClasses`] with the first class that differs.
pub(crate) fn check_classes(manifest: &Manifest, names: &[String]) -> Result<(), TrainError> {
    let trained = manifest
        .meta
        .get("task")
        .and_then(|task| task.get(CLASS_NAMES));
    let trained = trained.and_then(|names| ClassNames::deserialize(names).ok());
    let data = || ClassNames::of(names);
    trained.map_or(Ok(()), |trained| compare_classes(&trained, &data()))
}

/// Checks that a model was trained for the class names of the data, in their order.
///
/// # Errors
/// [`TrainError::OtherClasses`] with the first class that differs.
fn compare_classes(trained: &ClassNames, data: &ClassNames) -> Result<(), TrainError> {
    match trained.difference(data) {
        None => Ok(()),
        Some(difference) => Err(TrainError::OtherClasses(difference)),
    }
}

/// Classifies images with a model of type `M`.
pub struct Classification<M> {
    images: Images,
    objective: Objective,
    measures: Vec<Measure>,
    model: PhantomData<fn() -> M>,
}

impl<M> Classification<M> {
    /// Classifies these images.
    pub(crate) fn new(images: Images) -> Self {
        let classes = images.eval().class_names().len();
        Self {
            objective: Objective::new(&images.config().train, images.class_weights()),
            measures: sums::measures(classes),
            images,
            model: PhantomData,
        }
    }

    fn shape(&self) -> ImageShape {
        self.images.train().shape()
    }
}

impl<M: ImageClassifier> Task for Classification<M> {
    type Model = M;
    type HostBatch = HostBatch;
    type Batch = (Tensor<4>, Targets);
    type Batches = Batches;
    type Sums = Sums;
    type Details = Details;

    const NAME: &'static str = "classification";
    const WEIGHTED: bool = false;
    const WORDS: Words = Words {
        items: "images",
        units: "images",
        evaluated: "images",
    };

    fn measures(&self) -> &[Measure] {
        &self.measures
    }

    /// Weighted if the classes are.
    fn is_weighted(&self) -> bool {
        self.objective.is_weighted()
    }

    fn items(&self) -> Items {
        Items {
            train: self.images.train().len(),
            eval: self.images.eval().len(),
        }
    }

    fn evaluated(&self) -> EvalSet {
        self.images.evaluated()
    }

    fn facts(&self) -> Facts {
        let names = self.images.train().class_names();
        let Normalization { mean, std } = self.images.train().normalization();
        let value = |names: &ClassNames| serde_json::to_value(names).unwrap_or_default();
        let normalization = serde_json::to_value([mean, std]).unwrap_or_default();
        Facts::from_iter([
            (CLASSES.to_owned(), names.len().into()),
            (CLASS_NAMES.to_owned(), value(&ClassNames::of(names))),
            (NORMALIZATION.to_owned(), normalization),
        ])
    }

    fn compare(own: &Facts, stored: &Facts) -> Result<Option<Difference>, TrainError> {
        let said = |key: &str, facts: &Facts| facts.get(key).map(Value::to_string);
        let numbers = |index: usize, facts: &Facts| {
            let [mean, std]: [Vec<f32>; 2] = fact(facts, NORMALIZATION)?;
            Some(format!("{:?}", if index == 0 { mean } else { std }))
        };
        let both = [
            (
                ["number of classes", "data"],
                said(CLASSES, own),
                said(CLASSES, stored),
            ),
            (["data.mean"; 2], numbers(0, own), numbers(0, stored)),
            (["data.std"; 2], numbers(1, own), numbers(1, stored)),
        ];
        for ([name, key], own, stored) in both {
            if let (Some(own), Some(stored)) = (own, stored)
                && own != stored
            {
                let [name, key] = [name, key].map(str::to_owned);
                return Ok(Some(Difference {
                    name,
                    key,
                    own,
                    stored,
                }));
            }
        }
        let names = |facts: &Facts| fact::<ClassNames>(facts, CLASS_NAMES);
        match (names(stored), names(own)) {
            (Some(trained), Some(data)) => compare_classes(&trained, &data).map(|()| None),
            _ => Ok(None),
        }
    }

    fn describe(&self, environment: &mut Environment) {
        let (train, shape) = (self.images.train(), self.shape());
        let Normalization { mean, std } = train.normalization();
        environment.class_names = train.class_names().to_vec();
        environment.image_shape = [shape.channels, shape.height, shape.width];
        (environment.mean, environment.std) = (mean, std);
    }

    fn check(&self, model: &M) -> Result<(), TrainError> {
        let (config, batching) = (self.images.config(), self.images.batching());
        few_values::check(config, batching, self.images.ranks(), self.shape(), model)
    }

    fn check_same(&self, group: &ProcessGroup) -> Result<(), TrainError> {
        same_data::check(&[self.images.train(), self.images.eval()], group)
    }

    fn warning(&self) -> Option<String> {
        match self.images.train().class_names() {
            [only] => Some(format!(
                "warning: the data has one class, `{only}`, so the loss is always 0 and the model \
                 learns nothing. Set data.dir to a folder with one subfolder per class"
            )),
            _ => None,
        }
    }

    fn flops(&self, model: &M) -> Option<u64> {
        let shape = self.shape();
        model.flops([shape.channels, shape.height, shape.width])
    }

    fn train_batches(&self, epoch: usize, from_step: usize) -> Batches {
        self.images.train_batches(epoch, from_step)
    }

    fn to_device(
        &self,
        batch: HostBatch,
        device: &Device,
    ) -> Result<(Tensor<4>, Targets), TrainError> {
        Ok(self.images.to_device(batch, device))
    }

    fn loss(&self, model: &M, (images, targets): Self::Batch, dtype: FloatDType) -> Loss {
        let logits = model.forward(images.cast(dtype));
        self.objective.of(logits, targets)
    }

    fn blank(&self, items: usize) -> HostBatch {
        HostBatch::blank(items, self.images.eval().shape())
    }

    fn eval_batches(&self) -> (usize, Batches) {
        self.images.eval_batches()
    }

    fn sums(&self) -> Sums {
        Sums::new(self.images.eval().class_names().len())
    }

    fn score(&self, model: &M, batch: HostBatch, on: Pass<'_>) -> Result<Scored, TrainError> {
        let batch = self.images.to_evaluate(batch, on.device);
        let logits = model.forward(batch.images.cast(on.dtype));
        let logits = logits.cast(FloatDType::F32);
        let [_, classes] = logits.dims();
        Ok(Scored {
            labels: batch.labels,
            indices: batch.indices,
            classes,
            scores: Reading::start(vec![logits.flatten(0, 1)]).map_err(not_computed)?,
        })
    }

    fn details(
        &self,
        sums: Sums,
        evaluation: &Evaluation,
        group: &ProcessGroup,
    ) -> Result<Details, TrainError> {
        sums.details(self.images.eval(), evaluation, group)
    }
}
