//! Images of a rank, and their batches, made by the loader or on the device.

use burn::tensor::{Device, Tensor};
use burn_dist::ProcessGroup;
use datasets::{Batch, BatchIter, BatchPlan, Dataset, Epoch, ImageShape, Loader, Plans};
use models::weights::PyTorchKeys;
use models::{ImageClassifier, ModelError};

use super::{Classification, objective};

use crate::config::{Batching, Config, EvalSet, WithModel};
use crate::data::batch::{EvalBatch, Targets, evaluated, to_tensors};
use crate::data::device_data::{self, DeviceData, place};
use crate::data::input::{self, Input};
use crate::data::{self, balance, same_data};
use crate::error::TrainError;
use crate::task;
use crate::task::open::{Opening, Place, WithTask};

/// The images of a run, and a rank's share of them.
pub(crate) struct Images {
    config: Config,
    batching: Batching,
    ranks: usize,
    evaluated: EvalSet,
    input: Input,
    /// The weight of each class in the loss, if they differ.
    class_weights: Option<Vec<f64>>,
    /// The images kept on the device.
    resident: Resident,
}

/// The sets that are kept on the device.
#[derive(Default)]
struct Resident {
    train: Option<DeviceData>,
    eval: Option<DeviceData>,
}

/// A batch of images in host memory, or the plan to make it on the device.
pub enum HostBatch {
    /// Images.
    Loaded(Batch),
    /// Indices of images on the device, and how they are moved.
    Planned(BatchPlan),
}

impl HostBatch {
    /// Black images of class 0.
    pub(super) fn blank(images: usize, shape: ImageShape) -> Self {
        Self::Loaded(Batch {
            images: vec![0.0; images * shape.channels * shape.height * shape.width],
            labels: vec![0; images],
            mixed: None,
            indices: vec![0; images],
            shape,
        })
    }
}

/// Batches of an epoch or an evaluation.
pub enum Batches {
    /// Made by the loader.
    Loaded(BatchIter),
    /// Made on the device.
    Planned(Plans),
    /// No batches, because nothing is trained.
    None,
}

impl Batches {
    /// Batches of `epoch`. Made on the device if the images are `resident` and need no change that
    /// only the loader can make.
    fn new(loader: &Loader, resident: Option<&DeviceData>, epoch: Epoch) -> Self {
        match resident.and_then(|_| loader.plans(epoch.clone())) {
            Some(plans) => Self::Planned(plans),
            None => Self::Loaded(loader.iter(epoch)),
        }
    }
}

impl Iterator for Batches {
    type Item = Result<HostBatch, TrainError>;

    fn next(&mut self) -> Option<Self::Item> {
        match self {
            Self::Loaded(batches) => {
                let batch = batches.next()?;
                Some(batch.map(HostBatch::Loaded).map_err(TrainError::from))
            }
            Self::Planned(plans) => Some(Ok(HostBatch::Planned(plans.next()?))),
            Self::None => None,
        }
    }
}

impl Images {
    /// Opens the data sets of a configuration, or the caller's own.
    ///
    /// # Errors
    /// Fails if the data cannot be read or divided.
    pub fn open(opening: &Opening<'_>) -> Result<Self, TrainError> {
        let Opening {
            config,
            batching,
            evaluated,
            ..
        } = *opening;
        data::prepare(&config.data)?;
        let division = opening.division();
        let input = match opening.only_evaluates {
            true => input::open_to_evaluate(config, evaluated, batching, division)?,
            false => input::open(config, opening.images, batching, division)?,
        };
        let weights = &config.train.class_weights;
        Ok(Self {
            class_weights: balance::of_classes(weights, input.sets.train.as_ref())?,
            config: config.clone(),
            batching,
            ranks: opening.size,
            evaluated,
            input,
            resident: Resident::default(),
        })
    }

    /// Images for training.
    pub fn train(&self) -> &dyn Dataset {
        self.input.sets.train.as_ref()
    }

    /// Images that are evaluated.
    pub fn eval(&self) -> &dyn Dataset {
        self.input.sets.eval.as_ref()
    }

    /// Whether they are for validation or test.
    pub fn evaluated(&self) -> EvalSet {
        self.evaluated
    }

    pub fn config(&self) -> &Config {
        &self.config
    }

    /// The weight of each class in the loss, if they differ.
    pub fn class_weights(&self) -> Option<&[f64]> {
        self.class_weights.as_deref()
    }

    pub fn batching(&self) -> Batching {
        self.batching
    }

    pub fn ranks(&self) -> usize {
        self.ranks
    }

    /// Builds the configured model for these images, and passes it to `then`.
    ///
    /// # Errors
    /// Fails if the model does not accept images of this size.
    pub fn build<W: WithTask>(
        self,
        config: &Config,
        device: &Device,
        then: W,
    ) -> Result<W::Output, ModelError> {
        let train = self.input.sets.train.clone();
        let with_images = WithImages { images: self, then };
        config.model.build(train.as_ref(), device, with_images)
    }
}

/// Passes a model and the images on.
struct WithImages<W> {
    images: Images,
    then: W,
}

impl<W: WithTask> WithModel for WithImages<W> {
    type Output = W::Output;

    fn call<M: ImageClassifier + PyTorchKeys>(self, model: M) -> W::Output {
        self.then.call(Classification::<M>::new(self.images), model)
    }
}

impl task::open::Input for Images {
    fn check_same(&self, group: &ProcessGroup) -> Result<(), TrainError> {
        same_data::check(&[self.train(), self.eval()], group)
    }

    fn check(&self) -> Result<(), TrainError> {
        let possible = self.input.train_loader.only_moves();
        match self.config.data.on_device == Some(true) && !possible {
            true => Err(TrainError::DataOnDevice),
            false => Ok(()),
        }
    }

    /// Training images go to the device with autodiff.
    fn bring(&mut self, to: &Place<'_>) -> Result<(), TrainError> {
        self.check()?;
        let (train, eval) = (self.train(), self.eval());
        let is_gpu = !burn_dist::device::is_host(to.plain);
        // A folder of images would have to be decoded as a whole before the first step.
        let is_stored = self.config.data.kind.is_stored();
        let bytes = [train, eval].map(|images| device_data::size(images, to.plain));
        let (usual, possible) = (is_gpu && is_stored, self.input.train_loader.only_moves());
        let on_device = self.config.data.on_device;
        let [brings_train, brings_eval] = place(on_device, usual, possible, bytes, to.memory);
        let train = || DeviceData::upload(train, &self.input.train_loader, to.training);
        let eval = || DeviceData::upload(eval, &self.input.eval_loader, to.plain);
        let resident = Resident {
            train: brings_train.then(train).transpose()?,
            eval: brings_eval.then(eval).transpose()?,
        };
        self.resident = resident;
        Ok(())
    }
}

impl Images {
    pub(super) fn train_batches(&self, epoch: usize, from_step: usize) -> Batches {
        let Some(sampler) = &self.input.train_sampler else {
            return Batches::None;
        };
        let order = sampler.epoch(epoch).from_step(from_step);
        let resident = self.resident.train.as_ref();
        Batches::new(&self.input.train_loader, resident, order)
    }

    pub(super) fn eval_batches(&self) -> (usize, Batches) {
        let epoch = self.input.eval_sampler.epoch();
        let count = epoch.batches();
        let resident = self.resident.eval.as_ref();
        (
            count,
            Batches::new(&self.input.eval_loader, resident, epoch),
        )
    }

    /// Makes a training batch on `device`.
    pub(super) fn to_device(&self, batch: HostBatch, device: &Device) -> (Tensor<4>, Targets) {
        let weight = self.weight(&batch);
        let (images, targets) = self.to_tensors(batch, device);
        (images, Targets { weight, ..targets })
    }

    /// Sum of the class weights in a training batch, if classes have weights.
    fn weight(&self, batch: &HostBatch) -> Option<f64> {
        let weights = self.class_weights.as_deref()?;
        Some(match (batch, &self.resident.train) {
            (HostBatch::Loaded(batch), _) => {
                objective::weight(weights, &batch.labels, batch.mixed.as_ref())
            }
            (HostBatch::Planned(plan), Some(images)) => {
                objective::weight(weights, &images.classes_of(&plan.indices), None)
            }
            (HostBatch::Planned(_), None) => 0.0,
        })
    }

    fn to_tensors(&self, batch: HostBatch, device: &Device) -> (Tensor<4>, Targets) {
        match (batch, &self.resident.train) {
            (HostBatch::Loaded(batch), _) => to_tensors(batch, device),
            (HostBatch::Planned(plan), Some(images)) => images.batch(&plan),
            (HostBatch::Planned(_), None) => to_tensors(Batch::default(), device),
        }
    }

    /// Makes a batch for an evaluation on `device`.
    pub(super) fn to_evaluate(&self, batch: HostBatch, device: &Device) -> EvalBatch {
        match (batch, &self.resident.eval) {
            (HostBatch::Loaded(batch), _) => evaluated(batch, device),
            (HostBatch::Planned(plan), Some(images)) => EvalBatch {
                images: images.batch(&plan).0,
                labels: images.classes_of(&plan.indices),
                indices: plan.indices,
            },
            (HostBatch::Planned(_), None) => evaluated(Batch::default(), device),
        }
    }
}
