//! The small convolutional network of the MNIST tutorials: two convolutions, two linear layers.

use burn::config::Config;
use burn::module::Module;
use burn::nn::conv::{Conv2d, Conv2dConfig};
use burn::nn::pool::{MaxPool2d, MaxPool2dConfig};
use burn::nn::{Dropout, DropoutConfig, Linear, LinearConfig};
use burn::tensor::{Device, Tensor};
use burn_dist::autograd::boundary;

use crate::classifier::classifies;
use crate::flops::Tracer;
use crate::layers::dropout;
use crate::path::{Path, then_nothing, then_relu};
use crate::{ImageClassifier, ModelError, check};

const NAME: &str = "cnn";
const KERNEL: usize = 3;
const POOL: usize = 2;
/// Smallest side that leaves one pixel after two 3×3 convolutions and 2×2 pooling.
const MIN_SIDE: usize = 2 * (KERNEL - 1) + POOL;

/// Sizes and dropout rates of a [`Cnn`].
///
/// The defaults are those of MNIST: one channel, 28×28 pixels, 10 classes, 1,199,882 parameters.
#[derive(Config, Debug)]
pub struct CnnConfig {
    /// Channels of the images.
    #[config(default = 1)]
    pub channels: usize,
    /// Height of the images in pixels, at least 6.
    #[config(default = 28)]
    pub height: usize,
    /// Width of the images in pixels, at least 6.
    #[config(default = 28)]
    pub width: usize,
    /// Number of classes.
    #[config(default = 10)]
    pub classes: usize,
    /// Output channels of the two convolutions.
    #[config(default = "[32, 64]")]
    pub filters: [usize; 2],
    /// Width of the hidden linear layer.
    #[config(default = 128)]
    pub hidden: usize,
    /// Dropout rate after the pooling.
    #[config(default = 0.25)]
    pub dropout_conv: f64,
    /// Dropout rate before the last layer.
    #[config(default = 0.5)]
    pub dropout_hidden: f64,
}

impl CnnConfig {
    /// Builds the model on `device`.
    ///
    /// Weights and biases are uniform in ±1/√fan_in. This is Burn's default for convolutions and
    /// linear layers, and the same distribution as PyTorch's (Kaiming-uniform with a = √5).
    ///
    /// # Errors
    ///
    /// Fails for a size of zero, images below 6×6 pixels, or a dropout rate outside `[0, 1)`.
    pub fn init(&self, device: &Device) -> Result<Cnn, ModelError> {
        let features = self.flat_features()?;
        let [first, second] = self.filters;
        Ok(Cnn {
            conv1: Conv2dConfig::new([self.channels, first], [KERNEL; 2]).init(device),
            conv2: Conv2dConfig::new([first, second], [KERNEL; 2]).init(device),
            pool: MaxPool2dConfig::new([POOL; 2])
                .with_strides([POOL; 2])
                .init(),
            dropout_conv: DropoutConfig::new(self.dropout_conv).init(),
            fc1: LinearConfig::new(features, self.hidden).init(device),
            dropout_hidden: DropoutConfig::new(self.dropout_hidden).init(),
            fc2: LinearConfig::new(self.hidden, self.classes).init(device),
            classes: self.classes,
        })
    }

    /// Checks the configuration and returns the number of features of the first linear layer.
    fn flat_features(&self) -> Result<usize, ModelError> {
        let [first, second] = self.filters;
        let sizes = [
            ("channels", self.channels),
            ("classes", self.classes),
            ("filters", first),
            ("filters", second),
            ("hidden", self.hidden),
        ];
        check::sizes(NAME, &sizes)?;
        let rates = [
            ("dropout_conv", self.dropout_conv),
            ("dropout_hidden", self.dropout_hidden),
        ];
        check::rates(NAME, &rates)?;
        check::image(NAME, [self.height, self.width], MIN_SIDE)?;
        let pooled = |side: usize| (side - 2 * (KERNEL - 1)) / POOL;
        let (rows, columns) = (pooled(self.height), pooled(self.width));
        for weight in [
            [self.channels, first, KERNEL, KERNEL],
            [first, second, KERNEL, KERNEL],
            [rows, columns, second, self.hidden],
            [self.hidden, self.classes, 1, 1],
        ] {
            check::weight(NAME, &weight)?;
        }
        Ok(rows * columns * second)
    }
}

/// conv 3×3, ReLU, conv 3×3, ReLU, max-pool 2, dropout, linear, ReLU, dropout, linear.
///
/// The convolutions have no padding. With the default sizes an image goes through
/// 1×28×28 → 32×26×26 → 64×24×24 → 64×12×12 → 9216 → 128 → 10, and the parameters are
/// 320 + 18,496 + 1,179,776 + 1,290 = 1,199,882.
#[derive(Module, Debug)]
pub struct Cnn {
    conv1: Conv2d,
    conv2: Conv2d,
    pool: MaxPool2d,
    dropout_conv: Dropout,
    fc1: Linear,
    dropout_hidden: Dropout,
    fc2: Linear,
    classes: usize,
}

impl Cnn {
    /// Computes logits `[batch, classes]` of images `[batch, channels, height, width]`.
    ///
    /// Dropout is active only on an autodiff device. For evaluation use the module that
    /// [`Module::valid`] returns.
    pub fn forward(&self, images: Tensor<4>) -> Tensor<2> {
        let (path, images) = Path::enter(images);
        let x = path.conv(&self.conv1, boundary(images), then_relu());
        let x = path.conv(&self.conv2, boundary(x), then_relu());
        let x = dropout(&self.dropout_conv, path.max_pool(&self.pool, x));
        let x = path.linear(&self.fc1, boundary(path.flatten(x)), then_relu());
        let x = dropout(&self.dropout_hidden, x);
        path.leave(path.linear(&self.fc2, boundary(x), then_nothing()))
    }
}

impl ImageClassifier for Cnn {
    classifies!();

    fn flops(&self, image: [usize; 3]) -> Option<u64> {
        let mut tracer = Tracer::new(image);
        tracer.conv(&self.conv1);
        tracer.conv(&self.conv2);
        tracer.linear(&self.fc1);
        tracer.linear(&self.fc2);
        Some(tracer.operations())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config() -> CnnConfig {
        CnnConfig::new()
    }

    #[test]
    fn default_sizes_give_the_known_parameter_count() {
        let model = config().init(&Device::flex()).unwrap();
        assert_eq!(model.num_params(), 1_199_882);
    }

    #[test]
    fn forward_has_one_logit_per_class() {
        let device = Device::flex();
        let model = CnnConfig::new()
            .with_channels(3)
            .with_height(9)
            .with_width(6)
            .with_classes(7)
            .with_filters([4, 5])
            .with_hidden(11)
            .init(&device)
            .unwrap();
        let logits = model.forward(Tensor::zeros([2, 3, 9, 6], &device));
        assert_eq!(logits.dims(), [2, 7]);
        assert_eq!(model.num_classes(), 7);
    }

    #[test]
    fn weights_stay_within_one_over_the_root_of_the_fan_in() {
        let device = Device::flex();
        device.seed(1);
        let model = config().init(&device).unwrap();
        let largest = |values: Tensor<1>| values.abs().max().into_scalar::<f32>();
        let conv2 = largest(model.conv2.weight.val().flatten(0, 3));
        let fan_in: f32 = 32.0 * 9.0;
        assert!(conv2 <= 1.0 / fan_in.sqrt());
        assert!(conv2 > 0.95 / fan_in.sqrt());
    }

    #[test]
    fn dropout_is_off_without_autodiff() {
        let device = Device::flex();
        let model = config().init(&device.clone().autodiff()).unwrap().valid();
        let images = Tensor::ones([1, 1, 28, 28], &device);
        let first = model.forward(images.clone()).into_data();
        assert_eq!(first, model.forward(images).into_data());
    }

    #[test]
    fn impossible_configurations_are_named() {
        let device = Device::flex();
        let message = |config: CnnConfig| config.init(&device).unwrap_err().to_string();
        assert_eq!(
            message(config().with_hidden(0)),
            "cnn: `hidden` is 0, but must be at least 1"
        );
        assert_eq!(
            message(config().with_height(5)),
            "cnn: images of 5×28 pixels are too small; the minimum is 6×6"
        );
        assert_eq!(
            message(config().with_dropout_hidden(1.0)),
            "cnn: `dropout_hidden` is 1, but must be at least 0 and below 1"
        );
        assert!(message(config().with_dropout_conv(f64::NAN)).contains("dropout_conv"));
        assert!(message(config().with_hidden(usize::MAX / 2)).contains("too large"));
    }
}
