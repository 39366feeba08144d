//! `[model]` becomes a model.

use burn::tensor::Device;
use datasets::Dataset;
use models::{Cnn, ModelError};

use crate::config::CnnConfig;

/// The `cnn` for the images and classes of `data`, with random parameters.
///
/// # Errors
/// If it cannot take such images.
pub fn cnn(config: &CnnConfig, data: &dyn Dataset, device: &Device) -> Result<Cnn, ModelError> {
    let shape = data.shape();
    models::CnnConfig::new()
        .with_channels(shape.channels)
        .with_height(shape.height)
        .with_width(shape.width)
        .with_classes(data.class_names().len())
        .with_filters(config.filters)
        .with_hidden(config.hidden)
        .with_dropout_conv(config.dropout_conv)
        .with_dropout_hidden(config.dropout_hidden)
        .init(device)
}
