//! The convolutional network of CSC's course on deep learning: two convolutions with batch
//! normalization, one linear layer.

use burn::config::Config;
use burn::module::Module;
use burn::nn::conv::{Conv2d, Conv2dConfig};
use burn::nn::pool::{MaxPool2d, MaxPool2dConfig};
use burn::nn::{Linear, PaddingConfig2d};
use burn::tensor::{Device, Tensor};
use burn_dist::autograd::boundary;

use crate::classifier::classifies;
use crate::flops::Tracer;
use crate::layers::linear;
use crate::norm::BatchNorm2d;
use crate::path::{Path, then_nothing};
use crate::{ImageClassifier, ModelError, check};

const NAME: &str = "csc-cnn";
/// Two poolings by 2.
const SHRINK: usize = 4;

/// Sizes of a [`CscCnn`]; the defaults are those of MNIST, with 29,034 parameters.
#[derive(Config, Debug)]
pub struct CscCnnConfig {
    /// Channels of the images.
    #[config(default = 1)]
    pub channels: usize,
    /// Height of the images in pixels, at least 4.
    #[config(default = 28)]
    pub height: usize,
    /// Width of the images in pixels, at least 4.
    #[config(default = 28)]
    pub width: usize,
    /// Number of classes.
    #[config(default = 10)]
    pub classes: usize,
    /// Output channels of the two convolutions.
    #[config(default = "[16, 32]")]
    pub filters: [usize; 2],
}

impl CscCnnConfig {
    /// Builds the model on `device`. Weights and biases are uniform in ±1/√fan_in, PyTorch's
    /// default.
    ///
    /// # Errors
    /// Fails for a size of zero or images below 4×4 pixels.
    pub fn init(&self, device: &Device) -> Result<CscCnn, ModelError> {
        let features = self.checked_features()?;
        let [first, second] = self.filters;
        Ok(CscCnn {
            layer1: Stage::new(self.channels, first, device),
            layer2: Stage::new(first, second, device),
            fc: linear(features, self.classes, device),
            classes: self.classes,
        })
    }

    /// Checks the configuration and returns the number of features of the linear layer.
    fn checked_features(&self) -> Result<usize, ModelError> {
        let [first, second] = self.filters;
        check::sizes(
            NAME,
            &[
                ("channels", self.channels),
                ("classes", self.classes),
                ("filters", first),
                ("filters", second),
            ],
        )?;
        check::image(NAME, [self.height, self.width], SHRINK)?;
        let (rows, columns) = (self.height / SHRINK, self.width / SHRINK);
        check::weight(NAME, &[rows, columns, second, self.classes])?;
        check::weight(NAME, &[self.channels, first, 5, 5])?;
        check::weight(NAME, &[first, second, 5, 5])?;
        Ok(rows * columns * second)
    }
}

/// Two stages of conv 5×5, BN, ReLU and max-pool 2, then one linear layer.
///
/// With the default sizes an image goes through 1×28×28 → 16×14×14 → 32×7×7 → 1568 → 10. The names
/// of the parameters are those of the course's model, where `layer1.0` stands for `layer1.conv`
/// and `layer1.1` for `layer1.bn`.
#[derive(Module, Debug)]
pub struct CscCnn {
    layer1: Stage,
    layer2: Stage,
    fc: Linear,
    classes: usize,
}

#[derive(Module, Debug)]
struct Stage {
    conv: Conv2d,
    bn: BatchNorm2d,
    pool: MaxPool2d,
}

impl Stage {
    fn new(inputs: usize, outputs: usize, device: &Device) -> Self {
        Self {
            conv: Conv2dConfig::new([inputs, outputs], [5, 5])
                .with_padding(PaddingConfig2d::Explicit(2, 2, 2, 2))
                .init(device),
            bn: BatchNorm2d::new(outputs, device),
            pool: MaxPool2dConfig::new([2, 2]).with_strides([2, 2]).init(),
        }
    }

    fn forward(&self, path: Path, x: Tensor<4>) -> Tensor<4> {
        let x = path.conv(&self.conv, boundary(x), then_nothing());
        path.max_pool(&self.pool, path.batch_norm(&self.bn, x, true))
    }
}

impl CscCnn {
    /// Computes logits `[batch, classes]` of images `[batch, channels, height, width]`.
    ///
    /// Batch statistics are used only on an autodiff device. For evaluation use the module that
    /// [`Module::valid`] returns.
    pub fn forward(&self, images: Tensor<4>) -> Tensor<2> {
        let (path, images) = Path::enter(images);
        let x = self.layer2.forward(path, self.layer1.forward(path, images));
        path.leave(path.linear(&self.fc, boundary(path.flatten(x)), then_nothing()))
    }
}

impl ImageClassifier for CscCnn {
    classifies!();

    fn flops(&self, image: [usize; 3]) -> Option<u64> {
        let mut tracer = Tracer::new(image);
        for stage in [&self.layer1, &self.layer2] {
            tracer.conv(&stage.conv);
            tracer.pool(&stage.pool);
        }
        tracer.linear(&self.fc);
        Some(tracer.operations())
    }

    fn normalized_values(&self, image: [usize; 3]) -> Option<usize> {
        let mut tracer = Tracer::new(image);
        tracer.conv(&self.layer1.conv);
        tracer.pool(&self.layer1.pool);
        tracer.conv(&self.layer2.conv);
        Some(tracer.positions())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::trainable;

    #[test]
    fn default_sizes_give_the_known_parameter_count() {
        let model = CscCnnConfig::new()
            .init(&Device::flex().autodiff())
            .unwrap();
        assert_eq!(trainable(&model), 29_034);
    }

    #[test]
    fn forward_has_one_logit_per_class() {
        let device = Device::flex();
        let model = CscCnnConfig::new()
            .with_channels(3)
            .with_height(9)
            .with_width(6)
            .with_classes(7)
            .with_filters([2, 3])
            .init(&device)
            .unwrap();
        let logits = model.forward(Tensor::zeros([2, 3, 9, 6], &device));
        assert_eq!(logits.dims(), [2, 7]);
        assert_eq!(model.num_classes(), 7);
    }

    #[test]
    fn impossible_configurations_are_named() {
        let message = |config: CscCnnConfig| config.init(&Device::flex()).unwrap_err().to_string();
        assert!(message(CscCnnConfig::new().with_classes(0)).contains("`classes`"));
        assert!(message(CscCnnConfig::new().with_height(3)).contains("3×28 pixels"));
        assert!(message(CscCnnConfig::new().with_height(usize::MAX)).contains("too large"));
    }
}
