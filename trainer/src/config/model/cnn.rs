//! A CNN of two convolutions and two linear layers.

use burn::tensor::Device;
use datasets::Dataset;

use super::{AnyModel, Built, WithModel, classes};
use crate::config::error::Fault;
use crate::config::section::{exactly, keys};
use crate::config::validate::{fraction, in_range};

keys! {
    /// `cnn`: two 3×3 convolutions, max-pooling and two linear layers.
    CnnConfig {
        /// Output channels of the two convolutions. Default `[32, 64]`.
        #[serde(deserialize_with = "exactly")]
        filters: [usize; 2] = [32, 64],
        /// Width of the hidden linear layer. Default 128.
        hidden: usize = 128,
        /// Probability of zeroing a value after the pooling, in [0, 1). Default 0.25.
        dropout_conv: f64 = 0.25,
        /// Probability of zeroing a value before the last layer, in [0, 1). Default 0.5.
        dropout_hidden: f64 = 0.5,
    }
}

impl AnyModel for CnnConfig {
    fn check(&self) -> Result<(), Fault> {
        for filters in self.filters {
            in_range("model.filters", filters as u64, 1, 65_536)?;
        }
        in_range("model.hidden", self.hidden as u64, 1, 1 << 20)?;
        fraction("model.dropout_conv", self.dropout_conv)?;
        fraction("model.dropout_hidden", self.dropout_hidden)
    }

    fn build<W: WithModel>(&self, data: &dyn Dataset, device: &Device, then: W) -> Built<W> {
        let shape = data.shape();
        let model = models::CnnConfig::new()
            .with_channels(shape.channels)
            .with_height(shape.height)
            .with_width(shape.width)
            .with_classes(classes(data))
            .with_filters(self.filters)
            .with_hidden(self.hidden)
            .with_dropout_conv(self.dropout_conv)
            .with_dropout_hidden(self.dropout_hidden);
        Ok(then.call(model.init(device)?))
    }
}
