//! Residual networks of 18 to 152 layers (He et al. 2016, <https://arxiv.org/abs/1512.03385>), as
//! in torchvision.

use burn::config::Config;
use burn::module::Module;
use burn::nn::Linear;
use burn::nn::PaddingConfig2d;
use burn::nn::conv::Conv2d;
use burn::nn::pool::{MaxPool2d, MaxPool2dConfig};
use burn::tensor::{Device, Tensor};
use burn_dist::autograd::boundary;
use kernels::ops;
use serde::{Deserialize, Serialize};

use crate::classifier::{classifies, is_traced};
use crate::flops::Tracer;
use crate::layers::{Draw, conv, linear};
use crate::norm::BatchNorm2d;
use crate::path::{Path, then_nothing};
use crate::{ImageClassifier, ModelError, check};

const NAME: &str = "resnet";
/// Width of the last convolution of a bottleneck, as a multiple of the others.
const EXPANSION: usize = 4;

/// The first layers of a [`ResNet`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Stem {
    /// conv 7×7 with stride 2 and max-pool 3×3 with stride 2: a quarter of the size.
    ImageNet,
    /// conv 3×3, which keeps the size: for images of 32×32.
    Cifar,
}

/// Sizes of a [`ResNet`].
///
/// | preset | parameters with 1000 classes, [`Stem::ImageNet`] | with 100, [`Stem::Cifar`] |
/// |---|---|---|
/// | [`resnet18`](Self::resnet18) | 11,689,512 | 11,220,132 |
/// | [`resnet34`](Self::resnet34) | 21,797,672 | 21,328,292 |
/// | [`resnet50`](Self::resnet50) | 25,557,032 | 23,705,252 |
/// | [`resnet101`](Self::resnet101) | 44,549,160 | 42,697,380 |
/// | [`resnet152`](Self::resnet152) | 60,192,808 | 58,341,028 |
#[derive(Config, Debug)]
pub struct ResNetConfig {
    /// Blocks in each of the four groups.
    pub blocks: [usize; 4],
    /// Whether blocks are bottlenecks (1×1, 3×3, 1×1) instead of two 3×3 convolutions.
    pub bottleneck: bool,
    /// Number of classes.
    pub classes: usize,
    /// Channels of the first group inside its blocks; they double from group to group.
    #[config(default = 64)]
    pub width: usize,
    /// Channels of the images.
    #[config(default = 3)]
    pub channels: usize,
    /// The first layers.
    #[config(default = "Stem::ImageNet")]
    pub stem: Stem,
}

impl ResNetConfig {
    /// 18 layers, for images of 224×224.
    pub fn resnet18(classes: usize) -> Self {
        Self::new([2, 2, 2, 2], false, classes)
    }

    /// 34 layers, for images of 224×224.
    pub fn resnet34(classes: usize) -> Self {
        Self::new([3, 4, 6, 3], false, classes)
    }

    /// 50 layers, for images of 224×224; the stride is in the 3×3 convolution ("v1.5").
    pub fn resnet50(classes: usize) -> Self {
        Self::new([3, 4, 6, 3], true, classes)
    }

    /// 101 layers, for images of 224×224.
    pub fn resnet101(classes: usize) -> Self {
        Self::new([3, 4, 23, 3], true, classes)
    }

    /// 152 layers, for images of 224×224.
    pub fn resnet152(classes: usize) -> Self {
        Self::new([3, 8, 36, 3], true, classes)
    }

    /// Builds the model on `device`.
    ///
    /// Convolutions are normal with variance 2/fan_out, the linear layer uniform in ±1/√fan_in.
    ///
    /// # Errors
    /// Fails for a size of zero or more than 10,000 blocks in a group.
    pub fn init(&self, device: &Device) -> Result<ResNet, ModelError> {
        self.check()?;
        let mut inputs = self.width;
        let mut groups = [0, 1, 2, 3].map(|group| {
            let inner = self.width << group;
            (0..self.blocks[group])
                .map(|block| {
                    let stride = if block == 0 && group > 0 { 2 } else { 1 };
                    let built = self.block(inputs, inner, stride, device);
                    inputs = inner * self.expansion();
                    built
                })
                .collect::<Vec<_>>()
        });
        let [layer1, layer2, layer3, layer4] = groups.each_mut().map(std::mem::take);
        let stem_conv = |kernel, stride| {
            let channels = [self.channels, self.width];
            conv(channels, kernel, stride, Draw::KaimingFanOut, device)
        };
        let (conv1, maxpool) = match self.stem {
            Stem::ImageNet => (stem_conv(7, 2), Some(stem_pool())),
            Stem::Cifar => (stem_conv(3, 1), None),
        };
        Ok(ResNet {
            conv1,
            bn1: BatchNorm2d::new(self.width, device),
            maxpool,
            layer1,
            layer2,
            layer3,
            layer4,
            fc: linear(inputs, self.classes, device),
            classes: self.classes,
        })
    }

    fn block(&self, inputs: usize, inner: usize, stride: usize, device: &Device) -> Block {
        let conv =
            |channels, kernel, stride| conv(channels, kernel, stride, Draw::KaimingFanOut, device);
        let bn = |channels| BatchNorm2d::new(channels, device);
        let outputs = inner * self.expansion();
        let downsample = (stride != 1 || inputs != outputs).then(|| Downsample {
            conv: conv([inputs, outputs], 1, stride),
            bn: bn(outputs),
        });
        if self.bottleneck {
            Block {
                conv1: conv([inputs, inner], 1, 1),
                bn1: bn(inner),
                conv2: conv([inner, inner], 3, stride),
                bn2: bn(inner),
                conv3: Some(conv([inner, outputs], 1, 1)),
                bn3: Some(bn(outputs)),
                downsample,
            }
        } else {
            Block {
                conv1: conv([inputs, inner], 3, stride),
                bn1: bn(inner),
                conv2: conv([inner, inner], 3, 1),
                bn2: bn(inner),
                conv3: None,
                bn3: None,
                downsample,
            }
        }
    }

    fn expansion(&self) -> usize {
        if self.bottleneck { EXPANSION } else { 1 }
    }

    fn check(&self) -> Result<(), ModelError> {
        check::sizes(NAME, &self.blocks.map(|group| ("blocks", group)))?;
        check::sizes(
            NAME,
            &[
                ("classes", self.classes),
                ("width", self.width),
                ("channels", self.channels),
            ],
        )?;
        for group in self.blocks {
            check::blocks(NAME, group)?;
        }
        check::weight(NAME, &[self.channels, self.width, 7, 7])?;
        let widest = self.width.saturating_mul(8 * self.expansion());
        check::weight(NAME, &[widest, widest, 3, 3])?;
        check::weight(NAME, &[widest, self.classes])
    }
}

fn stem_pool() -> MaxPool2d {
    MaxPool2dConfig::new([3, 3])
        .with_strides([2, 2])
        .with_padding(PaddingConfig2d::Explicit(1, 1, 1, 1))
        .init()
}

/// A stem, four groups of residual blocks, mean over all positions, linear.
///
/// With 18 layers and [`Stem::ImageNet`] an image goes through 3×224×224 → 64×112×112 → 64×56×56 →
/// 128×28×28 → 256×14×14 → 512×7×7 → 512 → classes. With 50 layers the groups have 256, 512, 1024
/// and 2048 channels. Parameters have torchvision's names, with `downsample.conv` for
/// `downsample.0` and `downsample.bn` for `downsample.1`.
#[derive(Module, Debug)]
pub struct ResNet {
    conv1: Conv2d,
    bn1: BatchNorm2d,
    maxpool: Option<MaxPool2d>,
    layer1: Vec<Block>,
    layer2: Vec<Block>,
    layer3: Vec<Block>,
    layer4: Vec<Block>,
    fc: Linear,
    classes: usize,
}

/// Two or three convolutions with batch normalization, plus the input, then ReLU.
#[derive(Module, Debug)]
struct Block {
    conv1: Conv2d,
    bn1: BatchNorm2d,
    conv2: Conv2d,
    bn2: BatchNorm2d,
    conv3: Option<Conv2d>,
    bn3: Option<BatchNorm2d>,
    downsample: Option<Downsample>,
}

/// Brings a block's input to the size of its output.
#[derive(Module, Debug)]
struct Downsample {
    conv: Conv2d,
    bn: BatchNorm2d,
}

impl Block {
    fn trace(&self, tracer: &mut Tracer) {
        if let Some(down) = &self.downsample {
            tracer.side(&down.conv);
        }
        tracer.conv(&self.conv1);
        tracer.conv(&self.conv2);
        if let Some(conv) = &self.conv3 {
            tracer.conv(conv);
        }
    }

    fn forward(&self, path: Path, x: Tensor<4>) -> Tensor<4> {
        let x = boundary(x);
        let layer = |conv: &Conv2d, bn: &BatchNorm2d, x: Tensor<4>, relu: bool| {
            path.batch_norm(bn, path.conv(conv, x, then_nothing()), relu)
        };
        let identity = match &self.downsample {
            Some(down) => layer(&down.conv, &down.bn, x.clone(), false),
            None => x.clone(),
        };
        let x = layer(&self.conv1, &self.bn1, x, true);
        let mut x = layer(&self.conv2, &self.bn2, x, self.conv3.is_some());
        if let (Some(conv3), Some(bn3)) = (&self.conv3, &self.bn3) {
            x = layer(conv3, bn3, x, false);
        }
        ops::add_relu(x, identity)
    }
}

impl ResNet {
    /// Computes logits `[batch, classes]` of images `[batch, channels, height, width]`.
    ///
    /// Batch statistics are used only on an autodiff device. For evaluation use the module that
    /// [`Module::valid`] returns.
    pub fn forward(&self, images: Tensor<4>) -> Tensor<2> {
        let (path, images) = Path::enter(images);
        let x = path.conv(&self.conv1, boundary(images), then_nothing());
        let mut x = path.batch_norm(&self.bn1, x, true);
        if let Some(pool) = &self.maxpool {
            x = path.max_pool(pool, x);
        }
        for group in [&self.layer1, &self.layer2, &self.layer3, &self.layer4] {
            for block in group {
                x = block.forward(path, x);
            }
        }
        let x = boundary(path.mean(x));
        path.leave(path.linear(&self.fc, x, then_nothing()))
    }
}

impl ImageClassifier for ResNet {
    classifies!();
    is_traced!();
}

impl ResNet {
    /// Follows an image through all convolutions.
    fn trace(&self, image: [usize; 3]) -> Tracer {
        let mut tracer = Tracer::new(image);
        tracer.conv(&self.conv1);
        if let Some(pool) = &self.maxpool {
            tracer.pool(pool);
        }
        for block in [&self.layer1, &self.layer2, &self.layer3, &self.layer4]
            .into_iter()
            .flatten()
        {
            block.trace(&mut tracer);
        }
        tracer
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::trainable;

    #[test]
    fn presets_have_the_known_parameter_counts() {
        let device = Device::flex().autodiff();
        let count = |config: ResNetConfig| trainable(&config.init(&device).unwrap());
        let cifar = |config: ResNetConfig| config.with_stem(Stem::Cifar);
        assert_eq!(count(ResNetConfig::resnet18(1000)), 11_689_512);
        assert_eq!(count(ResNetConfig::resnet34(1000)), 21_797_672);
        assert_eq!(count(ResNetConfig::resnet50(1000)), 25_557_032);
        assert_eq!(count(ResNetConfig::resnet101(1000)), 44_549_160);
        assert_eq!(count(ResNetConfig::resnet152(1000)), 60_192_808);
        assert_eq!(count(cifar(ResNetConfig::resnet18(100))), 11_220_132);
        assert_eq!(count(cifar(ResNetConfig::resnet34(100))), 21_328_292);
        assert_eq!(count(cifar(ResNetConfig::resnet50(100))), 23_705_252);
        assert_eq!(count(cifar(ResNetConfig::resnet101(100))), 42_697_380);
        assert_eq!(count(cifar(ResNetConfig::resnet152(100))), 58_341_028);
    }

    #[test]
    fn forward_has_one_logit_per_class() {
        let device = Device::flex();
        for (bottleneck, stem) in [(false, Stem::ImageNet), (true, Stem::Cifar)] {
            let model = ResNetConfig::new([1, 1, 1, 2], bottleneck, 7)
                .with_width(2)
                .with_channels(1)
                .with_stem(stem)
                .init(&device)
                .unwrap();
            let logits = model.forward(Tensor::zeros([2, 1, 33, 20], &device));
            assert_eq!(logits.dims(), [2, 7]);
            assert_eq!(model.num_classes(), 7);
        }
    }

    #[test]
    fn the_last_batch_normalization_gets_the_fewest_values() {
        let device = Device::flex();
        let model = ResNetConfig::resnet18(2).with_width(2);
        let values = |stem, side| {
            let model = model.clone().with_stem(stem).init(&device).unwrap();
            model.normalized_values([3, side, side]).unwrap()
        };
        assert_eq!(values(Stem::ImageNet, 224), 49);
        assert_eq!(values(Stem::ImageNet, 32), 1);
        assert_eq!(values(Stem::ImageNet, 33), 4);
        assert_eq!(values(Stem::Cifar, 32), 16);
    }

    #[test]
    fn impossible_configurations_are_named() {
        let message = |config: ResNetConfig| config.init(&Device::flex()).unwrap_err().to_string();
        let small = ResNetConfig::new([1, 1, 1, 1], true, 10);
        assert!(message(small.clone().with_width(usize::MAX / 4)).contains("too large"));
        assert!(message(small.with_channels(0)).contains("`channels`"));
        assert!(message(ResNetConfig::new([1, 1, 0, 1], true, 10)).contains("`blocks`"));
        assert!(message(ResNetConfig::new([1, usize::MAX, 1, 1], true, 10)).contains("too many"));
    }
}
