//! The CNN of CSC's course.

use burn::tensor::Device;
use datasets::Dataset;

use super::{AnyModel, Built, WithModel, classes};
use crate::config::section::keys;

keys! {
    /// `csc-cnn`: two stages of 5×5 convolution, batch normalization and max-pooling, and one
    /// linear layer.
    CscCnnConfig {}
}

impl AnyModel for CscCnnConfig {
    fn build<W: WithModel>(&self, data: &dyn Dataset, device: &Device, then: W) -> Built<W> {
        let shape = data.shape();
        let model = models::CscCnnConfig::new()
            .with_channels(shape.channels)
            .with_height(shape.height)
            .with_width(shape.width)
            .with_classes(classes(data));
        Ok(then.call(model.init(device)?))
    }
}
