//! A loaded batch becomes tensors.

use burn::tensor::{Device, Int, Tensor, TensorData};
use datasets::{Batch, BatchIter, DatasetError, Plans};

use crate::device_data::DeviceData;

/// The micro-batches of an epoch: made by the loader, or on the device.
pub(crate) enum Batches<'a> {
    Loaded(BatchIter),
    There(&'a DeviceData, Plans),
}

impl Batches<'_> {
    /// The next one, on `device`.
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

/// What the images of a batch show.
pub struct Targets {
    /// The class of each image, \[samples\].
    pub labels: Tensor<1, Int>,
    /// The second class of each image, where images were mixed.
    pub mix: Option<Mix>,
}

/// Second classes and the weights of the first.
pub struct Mix {
    /// The second class of each image, \[samples\].
    pub labels: Tensor<1, Int>,
    /// The weight of the first class, from 0 to 1, \[samples\]; the second has the rest.
    pub weights: Tensor<1>,
}

/// Images \[samples, channels, height, width\] and what they show, on `device`.
pub fn to_tensors(batch: Batch, device: &Device) -> (Tensor<4>, Targets) {
    let samples = batch.labels.len();
    let shape = batch.shape;
    let images = TensorData::new(
        batch.images,
        [samples, shape.channels, shape.height, shape.width],
    );
    let labels = |labels: Vec<i32>| Tensor::from_data(TensorData::new(labels, [samples]), device);
    let mix = batch.mixed.map(|mixed| Mix {
        labels: labels(mixed.labels),
        weights: Tensor::from_data(TensorData::new(mixed.weights, [samples]), device),
    });
    let targets = Targets {
        labels: labels(batch.labels),
        mix,
    };
    (Tensor::from_data(images, device), targets)
}
