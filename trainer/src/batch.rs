//! A loaded batch becomes tensors.

use burn::tensor::{Device, Int, Tensor, TensorData};
use datasets::Batch;

/// Images \[samples, channels, height, width\] and labels \[samples\] on `device`.
pub fn to_tensors(batch: Batch, device: &Device) -> (Tensor<4>, Tensor<1, Int>) {
    let samples = batch.labels.len();
    let shape = batch.shape;
    let images = TensorData::new(
        batch.images,
        [samples, shape.channels, shape.height, shape.width],
    );
    let labels = TensorData::new(batch.labels, [samples]);
    (
        Tensor::from_data(images, device),
        Tensor::from_data(labels, device),
    )
}
