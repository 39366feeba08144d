//! Semantic segmentation: a class for each pixel of an image.
//!
//! A loss is a sum over pixels, and its weight is the number of pixels that count. Those with the
//! label [`IGNORED`] do not.

mod folder;
mod pictures;
mod shapes;
mod sums;

use std::marker::PhantomData;

use burn::tensor::{Device, FloatDType, Tensor, TensorData};
use burn_dist::ProcessGroup;
use models::Segmenter;

use crate::config::metric::Measure;
use crate::config::{AnyTask, EvalSet, SegmentationConfig};
use crate::error::TrainError;
use crate::run::environment::Environment;
use crate::task::loss::{RowTargets, row_losses};
use crate::task::open::Input;
use crate::task::reading::Reading;
use crate::task::{Evaluation, Facts, Items, Loss, Pass, Plain, Task, Words, not_computed};
pub(crate) use pictures::Pictures;
use pictures::{Batches, HostBatch};
use sums::{Scored, Sums};

/// Label of a pixel that does not count.
pub const IGNORED: u8 = 255;

/// Segments images with a model of type `M`.
pub struct Segmentation<M> {
    pictures: Pictures,
    model: PhantomData<fn() -> M>,
}

impl<M> Segmentation<M> {
    /// Segments these images.
    pub(crate) fn new(pictures: Pictures) -> Self {
        Self {
            pictures,
            model: PhantomData,
        }
    }
}

/// A batch on the device.
pub struct Batch {
    /// \[images, channels, height, width\].
    images: Tensor<4>,
    /// Class of each pixel, \[images × pixels\].
    targets: RowTargets,
}

impl Batch {
    fn new(batch: &HostBatch, device: &Device) -> Self {
        let counts = batch.labels.iter().map(|label| *label != IGNORED);
        let class = |label: &u8| match *label {
            IGNORED => 0,
            class => i32::from(class),
        };
        let classes = batch.labels.iter().map(class).collect();
        let images = TensorData::new(batch.images.clone(), batch.shape);
        Self {
            images: Tensor::from_data(images, device),
            targets: RowTargets::new(classes, counts.collect(), device),
        }
    }
}

impl<M: Segmenter> Task for Segmentation<M> {
    type Model = M;
    type HostBatch = HostBatch;
    type Batch = Batch;
    type Batches = Batches;
    type Sums = Sums;
    type Details = Plain;

    const NAME: &'static str = "segmentation";
    const WEIGHTED: bool = true;
    const WORDS: Words = Words {
        items: "images",
        units: "images",
        evaluated: "pixels",
    };

    fn measures(&self) -> &[Measure] {
        SegmentationConfig::default().measures().unwrap_or_default()
    }

    fn items(&self) -> Items {
        self.pictures.items()
    }

    fn evaluated(&self) -> EvalSet {
        self.pictures.evaluated()
    }

    fn facts(&self) -> Facts {
        let [channels, height, width] = self.pictures.shape();
        Facts::from_iter([
            ("data.classes".to_owned(), self.pictures.classes().into()),
            ("data.size".to_owned(), vec![channels, height, width].into()),
        ])
    }

    fn describe(&self, environment: &mut Environment) {
        environment.image_shape = self.pictures.shape();
    }

    fn check_same(&self, group: &ProcessGroup) -> Result<(), TrainError> {
        self.pictures.check_same(group)
    }

    fn flops(&self, model: &M) -> Option<u64> {
        model.flops(self.pictures.shape())
    }

    fn train_batches(&self, epoch: usize, from_step: usize) -> Batches {
        self.pictures.train_batches(epoch, from_step)
    }

    fn to_device(&self, batch: HostBatch, device: &Device) -> Result<Batch, TrainError> {
        Ok(Batch::new(&batch, device))
    }

    fn loss(&self, model: &M, batch: Batch, dtype: FloatDType) -> Loss {
        let logits = model.forward(batch.images.cast(dtype)).flatten(0, 1);
        batch.targets.loss(logits)
    }

    fn blank(&self, items: usize) -> HostBatch {
        HostBatch::blank(items, self.pictures.shape())
    }

    fn eval_batches(&self) -> (usize, Batches) {
        self.pictures.eval_batches()
    }

    fn sums(&self) -> Sums {
        Sums::new(self.pictures.classes())
    }

    fn score(&self, model: &M, batch: HostBatch, on: Pass<'_>) -> Result<Scored, TrainError> {
        let Batch { images, targets } = Batch::new(&batch, on.device);
        let logits = model.forward(images.cast(on.dtype)).flatten::<2>(0, 1);
        let logits = logits.cast(FloatDType::F32);
        let predicted = logits.clone().argmax(1).squeeze_dim::<1>(1).float();
        let losses = row_losses(logits, targets.classes);
        Ok(Scored {
            numbers: Reading::start(vec![losses, predicted]).map_err(not_computed)?,
            labels: batch.labels,
        })
    }

    fn details(
        &self,
        _sums: Sums,
        evaluation: &Evaluation,
        _group: &ProcessGroup,
    ) -> Result<Plain, TrainError> {
        Ok(Plain::of(evaluation))
    }
}
