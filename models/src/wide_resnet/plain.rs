//! The WideResNet of the Olivia guide: six residual blocks of plain convolutions.
//!
//! <https://documentation.sigma2.no/code_development/guides/pytorch_olivia/PyTorchSingleGpu.html>

use burn::config::Config;
use burn::module::Module;
use burn::nn::conv::{Conv2d, Conv2dConfig};
use burn::nn::pool::{MaxPool2d, MaxPool2dConfig};
use burn::nn::{Dropout, DropoutConfig, Linear};
use burn::tensor::{Device, Tensor};
use burn_dist::autograd::boundary;

use crate::classifier::{classifies, is_traced};
use crate::flops::Tracer;
use crate::layers::{Draw, conv, linear};
use crate::norm::BatchNorm2d;
use crate::path::{Path, then_nothing};
use crate::{ImageClassifier, ModelError, check};

const NAME: &str = "plain wide-resnet";
/// Two poolings by 2.
const SHRINK: usize = 4;

/// Sizes and dropout rate of a [`PlainWideResNet`].
#[derive(Config, Debug)]
pub struct PlainWideResNetConfig {
    /// Number of classes.
    pub classes: usize,
    /// Channels after the first convolution, and of the three pairs of blocks.
    #[config(default = "[16, 160, 320, 640]")]
    pub widths: [usize; 4],
    /// Channels of the images.
    #[config(default = 3)]
    pub channels: usize,
    /// Height of the images in pixels, at least 4.
    #[config(default = 32)]
    pub height: usize,
    /// Width of the images in pixels, at least 4.
    #[config(default = 32)]
    pub width: usize,
    /// Dropout rate between the two convolutions of a block.
    #[config(default = 0.01)]
    pub dropout: f64,
    /// Window side of an `AvgPool2d` on the last activation, whose results are averaged.
    ///
    /// Rows and columns that fill no window do not count. All positions count in a direction
    /// shorter than a window, and without a value.
    pub average_pool: Option<usize>,
}

impl PlainWideResNetConfig {
    /// The guide's sizes, with 17,175,444 parameters for 100 classes.
    ///
    /// Its 7×7 pooling sees 49 of the 64 positions that are left of a 32×32 image.
    pub fn olivia(classes: usize) -> Self {
        Self::new(classes).with_average_pool(Some(7))
    }

    /// Builds the model on `device`. Weights and biases are uniform in ±1/√fan_in, PyTorch's
    /// default.
    ///
    /// # Errors
    /// Fails for a size of zero, images below 4×4 pixels, or a dropout rate outside `[0, 1)`.
    pub fn init(&self, device: &Device) -> Result<PlainWideResNet, ModelError> {
        self.check()?;
        let [stem, first, second, third] = self.widths;
        let block = |inputs, outputs| self.block(inputs, outputs, device);
        Ok(PlainWideResNet {
            input_block: ConvBnRelu::new(self.channels, stem, device),
            block1: block(stem, first),
            block2: block(first, first),
            block3: block(first, second),
            block4: block(second, second),
            block5: block(second, third),
            block6: block(third, third),
            pool: MaxPool2dConfig::new([2, 2]).with_strides([2, 2]).init(),
            fc: linear(third, self.classes, device),
            average_pool: self.average_pool,
            classes: self.classes,
        })
    }

    fn block(&self, inputs: usize, outputs: usize, device: &Device) -> Block {
        Block {
            scale: (inputs != outputs)
                .then(|| Conv2dConfig::new([inputs, outputs], [1, 1]).init(device)),
            layer1: ConvBnRelu::new(inputs, outputs, device),
            dropout: DropoutConfig::new(self.dropout).init(),
            layer2: ConvBnRelu::new(outputs, outputs, device),
        }
    }

    fn check(&self) -> Result<(), ModelError> {
        let [stem, first, second, third] = self.widths;
        check::sizes(
            NAME,
            &[
                ("classes", self.classes),
                ("channels", self.channels),
                ("widths", stem),
                ("widths", first),
                ("widths", second),
                ("widths", third),
                ("average_pool", self.average_pool.unwrap_or(1)),
            ],
        )?;
        check::rates(NAME, &[("dropout", self.dropout)])?;
        check::image(NAME, [self.height, self.width], SHRINK)?;
        check::weight(NAME, &[third, self.classes])?;
        check::weight(NAME, &[self.channels, stem, 3, 3])?;
        let widest = self.widths.into_iter().fold(0, usize::max);
        check::weight(NAME, &[widest, widest, 3, 3])
    }
}

/// conv-BN-ReLU, two blocks, max-pool 2, two blocks, max-pool 2, two blocks, average pool, linear.
///
/// With the guide's sizes an image goes through 3×32×32 → 16×32×32 → 160×32×32 → 160×16×16 →
/// 320×16×16 → 320×8×8 → 640×8×8 → 640 → classes. Parameters have the names of the guide's model,
/// with `conv` for `cbr.0` and `bn` for `cbr.1`.
#[derive(Module, Debug)]
pub struct PlainWideResNet {
    input_block: ConvBnRelu,
    block1: Block,
    block2: Block,
    block3: Block,
    block4: Block,
    block5: Block,
    block6: Block,
    pool: MaxPool2d,
    fc: Linear,
    average_pool: Option<usize>,
    classes: usize,
}

/// conv 3×3 without bias, BN, ReLU.
#[derive(Module, Debug)]
struct ConvBnRelu {
    conv: Conv2d,
    bn: BatchNorm2d,
}

impl ConvBnRelu {
    fn new(inputs: usize, outputs: usize, device: &Device) -> Self {
        Self {
            conv: conv([inputs, outputs], 3, 1, Draw::Default, device),
            bn: BatchNorm2d::new(outputs, device),
        }
    }

    fn forward(&self, path: Path, x: Tensor<4>) -> Tensor<4> {
        path.batch_norm(&self.bn, path.conv(&self.conv, x, then_nothing()), true)
    }

    /// The same, then dropout.
    fn forward_dropout(&self, path: Path, x: Tensor<4>, dropout: &Dropout) -> Tensor<4> {
        let x = path.conv(&self.conv, x, then_nothing());
        path.batch_norm_relu_dropout(&self.bn, dropout, x)
    }

    /// The same without dropout, plus `plus`.
    fn forward_plus(&self, path: Path, x: Tensor<4>, plus: Tensor<4>) -> Tensor<4> {
        let x = path.conv(&self.conv, x, then_nothing());
        path.batch_norm_relu_plus(&self.bn, x, plus)
    }
}

/// conv-BN-ReLU, dropout, conv-BN-ReLU, plus the input. A 1×1 convolution with bias adapts the
/// input if the width changes.
#[derive(Module, Debug)]
struct Block {
    scale: Option<Conv2d>,
    layer1: ConvBnRelu,
    dropout: Dropout,
    layer2: ConvBnRelu,
}

impl Block {
    fn trace(&self, tracer: &mut Tracer) {
        if let Some(conv) = &self.scale {
            tracer.side(conv);
        }
        tracer.conv(&self.layer1.conv);
        tracer.conv(&self.layer2.conv);
    }

    fn forward(&self, path: Path, x: Tensor<4>) -> Tensor<4> {
        let x = boundary(x);
        let residual = match &self.scale {
            Some(conv) => path.conv(conv, x.clone(), then_nothing()),
            None => x.clone(),
        };
        let x = self.layer1.forward_dropout(path, x, &self.dropout);
        self.layer2.forward_plus(path, x, residual)
    }
}

impl PlainWideResNet {
    /// Computes logits `[batch, classes]` of images `[batch, channels, height, width]`.
    ///
    /// Dropout and batch statistics are active only on an autodiff device. For evaluation use the
    /// module that [`Module::valid`] returns.
    pub fn forward(&self, images: Tensor<4>) -> Tensor<2> {
        let (path, images) = Path::enter(images);
        let x = self.input_block.forward(path, boundary(images));
        let x = self.block2.forward(path, self.block1.forward(path, x));
        let x = path.max_pool(&self.pool, x);
        let x = self.block4.forward(path, self.block3.forward(path, x));
        let x = path.max_pool(&self.pool, x);
        let x = self.block6.forward(path, self.block5.forward(path, x));
        let x = boundary(self.average(path, x));
        path.leave(path.linear(&self.fc, x, then_nothing()))
    }

    fn average(&self, path: Path, x: Tensor<4>) -> Tensor<2> {
        let Some(side) = self.average_pool else {
            return path.mean(x);
        };
        let [height, width] = path.size(&x);
        let covered = |length: usize| match length % side {
            rest if rest < length => length - rest,
            _ => length,
        };
        // All windows have one size, so the mean of their means is the mean over everything they
        // cover.
        path.mean_of(x, [covered(height), covered(width)])
    }
}

impl ImageClassifier for PlainWideResNet {
    classifies!();
    is_traced!();
}

impl PlainWideResNet {
    /// Follows an image through all convolutions.
    fn trace(&self, image: [usize; 3]) -> Tracer {
        let mut tracer = Tracer::new(image);
        tracer.conv(&self.input_block.conv);
        let pairs = [
            [&self.block1, &self.block2],
            [&self.block3, &self.block4],
            [&self.block5, &self.block6],
        ];
        for (index, pair) in pairs.into_iter().enumerate() {
            if index > 0 {
                tracer.pool(&self.pool);
            }
            for block in pair {
                block.trace(&mut tracer);
            }
        }
        tracer
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::trainable;
    use kernels::policy::Choice;

    fn small() -> PlainWideResNetConfig {
        PlainWideResNetConfig::new(7).with_widths([2, 3, 4, 5])
    }

    #[test]
    fn the_preset_has_the_known_parameter_count() {
        let model = PlainWideResNetConfig::olivia(100)
            .init(&Device::flex().autodiff())
            .unwrap();
        assert_eq!(trainable(&model), 17_175_444);
    }

    #[test]
    fn any_image_gives_one_logit_per_class() {
        let device = Device::flex();
        for config in [small(), small().with_average_pool(Some(7))] {
            let model = config.init(&device).unwrap();
            for side in [4, 32, 70] {
                let logits = model.forward(Tensor::ones([2, 3, side, side], &device));
                assert_eq!(logits.dims(), [2, 7]);
            }
        }
    }

    #[test]
    fn positions_outside_the_windows_do_not_count() {
        let device = Device::flex();
        let model = small().with_average_pool(Some(2)).init(&device).unwrap();
        let mean = |x: Tensor<4>| {
            let mean_by = |choice| {
                kernels::policy::scoped(choice, || {
                    let (path, x) = Path::enter(x.clone());
                    model.average(path, x).into_scalar::<f32>()
                })
            };
            let own = mean_by(Choice::Auto);
            assert_eq!(mean_by(Choice::Burn), own);
            own
        };
        let one = Tensor::<4>::from_floats([[[[1.0, 2.0, 90.0], [3.0, 4.0, 90.0]]]], &device);
        assert_eq!(mean(one.clone()), 2.5);
        let two = Tensor::cat(vec![one.clone().narrow(3, 0, 2), one.clone() + 4.0], 3);
        assert_eq!(mean(two), 4.5);
        assert_eq!(mean(one.narrow(3, 2, 1)), 90.0);
    }

    #[test]
    fn impossible_configurations_are_named() {
        let message =
            |config: PlainWideResNetConfig| config.init(&Device::flex()).unwrap_err().to_string();
        assert!(message(small().with_widths([1, 0, 1, 1])).contains("`widths`"));
        assert!(message(small().with_width(3)).contains("32×3 pixels"));
        assert!(message(small().with_average_pool(Some(0))).contains("`average_pool`"));
        assert!(message(small().with_dropout(-0.5)).contains("`dropout`"));
    }
}
