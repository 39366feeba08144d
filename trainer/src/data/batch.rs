//! Turns loaded batches into tensors.

use burn::tensor::{Device, Int, Tensor, TensorData};
use datasets::{Batch, ImageShape};

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
    /// Sum of the samples' class weights, if classes have weights.
    pub weight: Option<f64>,
}

/// Second classes, and the weights of the first ones.
pub struct Mix {
    /// The second class of each image, \[samples\].
    pub labels: Tensor<1, Int>,
    /// The weight of the first class, from 0 to 1, \[samples\]. The second class has the rest.
    pub weights: Tensor<1>,
}

/// Copies a batch to `device` for an evaluation.
pub(crate) fn evaluated(batch: Batch, device: &Device) -> EvalBatch {
    EvalBatch {
        images: images(batch.images, batch.labels.len(), batch.shape, device),
        labels: batch.labels,
        indices: batch.indices,
    }
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
        weight: None,
    };
    (images, targets)
}

fn images(values: Vec<f32>, samples: usize, shape: ImageShape, device: &Device) -> Tensor<4> {
    let size = [samples, shape.channels, shape.height, shape.width];
    Tensor::from_data(TensorData::new(values, size), device)
}
