//! Turns loaded batches into tensors.

use burn::tensor::{Device, Int, Tensor, TensorData};
use datasets::{Batch, BatchIter, DatasetError, Epoch, ImageShape, Loader, Plans};

use crate::data::device_data::DeviceData;

/// Batches of an epoch or an evaluation, made by the loader or on the device.
pub(crate) enum Batches<'a> {
    Loaded(BatchIter),
    There(&'a DeviceData, Plans),
}

impl<'a> Batches<'a> {
    /// Batches of `epoch`. Made on the device if the images are `resident` and need no change that
    /// only the loader can make.
    pub(crate) fn new(loader: &Loader, resident: Option<&'a DeviceData>, epoch: Epoch) -> Self {
        let plans = |data| Some((data, loader.plans(epoch.clone())?));
        match resident.and_then(plans) {
            Some((data, plans)) => Self::There(data, plans),
            None => Self::Loaded(loader.iter(epoch)),
        }
    }

    /// Next batch for an evaluation on `device`.
    pub(crate) fn next_to_evaluate(
        &mut self,
        device: &Device,
    ) -> Option<Result<EvalBatch, DatasetError>> {
        match self {
            Self::Loaded(batches) => {
                let batch = batches.next()?;
                Some(batch.map(|batch| EvalBatch {
                    images: images(batch.images, batch.labels.len(), batch.shape, device),
                    labels: batch.labels,
                    indices: batch.indices,
                }))
            }
            Self::There(data, plans) => plans.next().map(|plan| {
                Ok(EvalBatch {
                    images: data.batch(&plan).0,
                    labels: data.classes_of(&plan.indices),
                    indices: plan.indices,
                })
            }),
        }
    }

    /// Next training batch on `device`.
    pub(crate) fn next(
        &mut self,
        device: &Device,
    ) -> Option<Result<(Tensor<4>, Targets), DatasetError>> {
        match self {
            Self::Loaded(batches) => {
                let batch = batches.next()?;
                Some(batch.map(|batch| to_tensors(batch, device)))
            }
            Self::There(data, plans) => plans.next().map(|plan| Ok(data.batch(&plan))),
        }
    }
}

/// Images on the device for an evaluation, with labels and indices on the host.
pub(crate) struct EvalBatch {
    /// \[samples, channels, height, width\].
    pub images: Tensor<4>,
    /// The class of each image.
    pub labels: Vec<i32>,
    /// Index of each image in the data set.
    pub indices: Vec<usize>,
}

/// Labels of a batch.
pub struct Targets {
    /// The class of each image, \[samples\].
    pub labels: Tensor<1, Int>,
    /// The second class of each image, if images were mixed.
    pub mix: Option<Mix>,
}

/// Second classes, and the weights of the first ones.
pub struct Mix {
    /// The second class of each image, \[samples\].
    pub labels: Tensor<1, Int>,
    /// The weight of the first class, from 0 to 1, \[samples\]. The second class has the rest.
    pub weights: Tensor<1>,
}

/// Copies a batch to `device`: images \[samples, channels, height, width\] and their targets.
pub fn to_tensors(batch: Batch, device: &Device) -> (Tensor<4>, Targets) {
    let samples = batch.labels.len();
    let images = images(batch.images, samples, batch.shape, device);
    let labels = |labels: Vec<i32>| Tensor::from_data(TensorData::new(labels, [samples]), device);
    let mix = batch.mixed.map(|mixed| Mix {
        labels: labels(mixed.labels),
        weights: Tensor::from_data(TensorData::new(mixed.weights, [samples]), device),
    });
    let targets = Targets {
        labels: labels(batch.labels),
        mix,
    };
    (images, targets)
}

fn images(values: Vec<f32>, samples: usize, shape: ImageShape, device: &Device) -> Tensor<4> {
    let size = [samples, shape.channels, shape.height, shape.width];
    Tensor::from_data(TensorData::new(values, size), device)
}
