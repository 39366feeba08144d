//! ConvNeXt (Liu et al. 2022, <https://arxiv.org/abs/2201.03545>), as in torchvision and timm.

use burn::config::Config;
use burn::module::{Module, Param};
use burn::nn::conv::{Conv2d, Conv2dConfig};
use burn::nn::{Initializer, Linear, LinearConfig, PaddingConfig2d};
use burn::tensor::{Device, FloatDType, Tensor};
use burn_dist::autograd::boundary;

use crate::drop_path::DropPath;
use crate::flops::Tracer;
use crate::layers::read;
use crate::path::{Path, then_nothing};
use crate::{ImageClassifier, LayerNorm, ModelError, check};

const NAME: &str = "convnext";
const NORM_EPSILON: f64 = 1e-6;
/// Standard deviation of the weights.
const WEIGHT_STD: f64 = 0.02;
/// Side of the depthwise convolution's window.
const WINDOW: usize = 7;
/// Width of a block's hidden layer as a multiple of its channels.
const EXPANSION: usize = 4;
/// Factor by which the stages after the stem reduce the sides of the images.
const REDUCTION: usize = 8;

/// Sizes and drop-path rate of a [`ConvNext`].
///
/// | preset | parameters with 1000 classes |
/// |---|---|
/// | [`tiny`](Self::tiny) | 28,589,128 |
/// | [`small`](Self::small) | 50,223,688 |
/// | [`base`](Self::base) | 88,591,464 |
/// | [`large`](Self::large) | 197,767,336 |
#[derive(Config, Debug)]
pub struct ConvNextConfig {
    /// Blocks in each of the four stages.
    pub depths: [usize; 4],
    /// Channels of the four stages.
    pub widths: [usize; 4],
    /// Number of classes.
    pub classes: usize,
    /// Channels of the images.
    #[config(default = 3)]
    pub channels: usize,
    /// Height of the images in pixels, at least 8 × `patch`.
    #[config(default = 224)]
    pub height: usize,
    /// Width of the images in pixels, at least 8 × `patch`.
    #[config(default = 224)]
    pub width: usize,
    /// Side of the patches of the first convolution, in pixels.
    #[config(default = 4)]
    pub patch: usize,
    /// Initial factor of every block's branch.
    #[config(default = 1e-6)]
    pub layer_scale: f64,
    /// Probability that a sample skips the branch of the last block. It rises linearly from 0 at
    /// the first block.
    #[config(default = 0.0)]
    pub drop_path: f64,
}

impl ConvNextConfig {
    /// ConvNeXt-T.
    pub fn tiny(classes: usize) -> Self {
        Self::new([3, 3, 9, 3], [96, 192, 384, 768], classes)
    }

    /// ConvNeXt-S.
    pub fn small(classes: usize) -> Self {
        Self::new([3, 3, 27, 3], [96, 192, 384, 768], classes)
    }

    /// ConvNeXt-B.
    pub fn base(classes: usize) -> Self {
        Self::new([3, 3, 27, 3], [128, 256, 512, 1024], classes)
    }

    /// ConvNeXt-L.
    pub fn large(classes: usize) -> Self {
        Self::new([3, 3, 27, 3], [192, 384, 768, 1536], classes)
    }

    /// Builds the model on `device`.
    ///
    /// Weights are normal with standard deviation 0.02, biases 0.
    ///
    /// # Errors
    /// Fails for a size of zero, more than 10,000 blocks, images smaller than 8 × `patch`, or a
    /// rate outside `[0, 1)`.
    pub fn init(&self, device: &Device) -> Result<ConvNext, ModelError> {
        self.check()?;
        let blocks: usize = self.depths.iter().sum();
        let last = blocks.saturating_sub(1).max(1);
        let mut before = 0;
        let mut stages = Vec::with_capacity(self.depths.len());
        for (index, (depth, width)) in self.depths.into_iter().zip(self.widths).enumerate() {
            let inputs = index.checked_sub(1).map(|previous| self.widths[previous]);
            stages.push(Stage {
                downsample: inputs.map(|inputs| Downsample {
                    norm: norm(inputs, device),
                    conv: patches([inputs, width], 2, device),
                }),
                blocks: (before..before + depth)
                    .map(|block| {
                        let rate = self.drop_path * block as f64 / last as f64;
                        Block::new(width, self.layer_scale, rate, device)
                    })
                    .collect(),
            });
            before += depth;
        }
        let [first, .., outputs] = self.widths;
        Ok(ConvNext {
            stem: PatchStem {
                conv: patches([self.channels, first], self.patch, device),
                norm: norm(first, device),
            },
            stages,
            head: Head {
                norm: norm(outputs, device),
                fc: linear(outputs, self.classes, device),
            },
            classes: self.classes,
        })
    }

    fn check(&self) -> Result<(), ModelError> {
        check::sizes(NAME, &self.depths.map(|depth| ("depths", depth)))?;
        check::sizes(NAME, &self.widths.map(|width| ("widths", width)))?;
        let sizes = [
            ("classes", self.classes),
            ("channels", self.channels),
            ("patch", self.patch),
        ];
        check::sizes(NAME, &sizes)?;
        check::rates(NAME, &[("drop_path", self.drop_path)])?;
        for depth in self.depths {
            check::blocks(NAME, depth)?;
        }
        let [first, .., last] = self.widths;
        check::weight(NAME, &[self.channels, first, self.patch, self.patch])?;
        let minimum = self.patch.saturating_mul(REDUCTION);
        check::image(NAME, [self.height, self.width], minimum)?;
        for width in self.widths {
            check::weight(NAME, &[width, width, WINDOW * WINDOW])?;
        }
        check::weight(NAME, &[last, self.classes])
    }
}

fn norm(channels: usize, device: &Device) -> LayerNorm {
    LayerNorm::new(channels, NORM_EPSILON, device)
}

fn draw() -> Initializer {
    Initializer::Normal {
        mean: 0.0,
        std: WEIGHT_STD,
    }
}

fn with_zero_bias(mut conv: Conv2d, device: &Device) -> Conv2d {
    let [outputs, ..] = conv.weight.lazy_shape().dims::<4>();
    conv.bias = Some(Initializer::Zeros.init([outputs], device));
    conv
}

/// A convolution whose windows of `side` pixels do not overlap.
fn patches(channels: [usize; 2], side: usize, device: &Device) -> Conv2d {
    let conv = Conv2dConfig::new(channels, [side; 2])
        .with_stride([side; 2])
        .with_initializer(draw());
    with_zero_bias(conv.init(device), device)
}

/// A 7×7 convolution of each channel by itself.
fn depthwise(channels: usize, device: &Device) -> Conv2d {
    let pad = WINDOW / 2;
    let conv = Conv2dConfig::new([channels; 2], [WINDOW; 2])
        .with_padding(PaddingConfig2d::Explicit(pad, pad, pad, pad))
        .with_groups(channels)
        .with_initializer(draw());
    with_zero_bias(conv.init(device), device)
}

fn linear(inputs: usize, outputs: usize, device: &Device) -> Linear {
    let mut linear = LinearConfig::new(inputs, outputs)
        .with_initializer(draw())
        .init(device);
    linear.bias = Some(Initializer::Zeros.init([outputs], device));
    linear
}

/// Patches, four stages of blocks with a halving between them, mean over all positions, linear.
///
/// With ConvNeXt-T an image goes through 3×224×224 → 96×56×56 → 192×28×28 → 384×14×14 → 768×7×7 →
/// 768 → classes. Parameters have timm's names, with `stem.conv`, `stem.norm`, `downsample.norm`
/// and `downsample.conv` for the numbers of its `Sequential`s.
#[derive(Module, Debug)]
pub struct ConvNext {
    stem: PatchStem,
    stages: Vec<Stage>,
    head: Head,
    classes: usize,
}

#[derive(Module, Debug)]
struct PatchStem {
    conv: Conv2d,
    norm: LayerNorm,
}

/// A reduction of the size, and blocks.
#[derive(Module, Debug)]
struct Stage {
    downsample: Option<Downsample>,
    blocks: Vec<Block>,
}

/// Halves height and width.
#[derive(Module, Debug)]
struct Downsample {
    norm: LayerNorm,
    conv: Conv2d,
}

/// Depthwise convolution, layer normalization, linear, GELU, linear, times `gamma`, plus the input.
#[derive(Module, Debug)]
struct Block {
    /// Factor of the branch, \[channels\].
    gamma: Param<Tensor<1>>,
    conv_dw: Conv2d,
    norm: LayerNorm,
    mlp: Mlp,
    drop_path: DropPath,
}

#[derive(Module, Debug)]
struct Mlp {
    fc1: Linear,
    fc2: Linear,
}

#[derive(Module, Debug)]
struct Head {
    norm: LayerNorm,
    fc: Linear,
}

impl Block {
    fn new(channels: usize, scale: f64, drop_path: f64, device: &Device) -> Self {
        let scale = Initializer::Constant { value: scale };
        Self {
            gamma: scale.init([channels], device),
            conv_dw: depthwise(channels, device),
            norm: norm(channels, device),
            mlp: Mlp {
                fc1: linear(channels, EXPANSION * channels, device),
                fc2: linear(EXPANSION * channels, channels, device),
            },
            drop_path: DropPath::new(drop_path),
        }
    }

    fn trace(&self, tracer: &mut Tracer) {
        tracer.conv(&self.conv_dw);
        let pixels = tracer.positions();
        tracer.linear_on(&self.mlp.fc1, pixels);
        tracer.linear_on(&self.mlp.fc2, pixels);
    }

    fn forward(&self, path: Path, x: Tensor<4>) -> Tensor<4> {
        let x = boundary(x);
        let y = path.conv(&self.conv_dw, x.clone(), then_nothing());
        let y = self.norm.forward(path.to_channels_last(y));
        let y = path.linear(&self.mlp.fc1, y, then_nothing());
        let y = path.gelu_linear(&self.mlp.fc2, y, then_nothing());
        let dtype: FloatDType = y.dtype().into();
        let y = y * read(&self.gamma).cast(dtype).unsqueeze::<4>();
        x + path.of_channels_last(self.drop_path.forward(y))
    }
}

impl ConvNext {
    /// Computes logits `[batch, classes]` of images `[batch, channels, height, width]`.
    ///
    /// Drop-path is active only on an autodiff device. For evaluation use the module that
    /// [`Module::valid`] returns.
    pub fn forward(&self, images: Tensor<4>) -> Tensor<2> {
        let (path, images) = Path::enter(images);
        let x = path.conv(&self.stem.conv, boundary(images), then_nothing());
        let mut x = path.channel_norm(&self.stem.norm, x);
        for stage in &self.stages {
            if let Some(down) = &stage.downsample {
                let normal = path.channel_norm(&down.norm, boundary(x));
                x = path.conv(&down.conv, normal, then_nothing());
            }
            for block in &stage.blocks {
                x = block.forward(path, x);
            }
        }
        let x = self.head.norm.forward(path.mean(boundary(x)));
        path.leave(path.linear(&self.head.fc, x, then_nothing()))
    }
}

impl ImageClassifier for ConvNext {
    crate::classifier::classifies!();

    fn flops(&self, image: [usize; 3]) -> Option<u64> {
        let mut tracer = Tracer::new(image);
        tracer.conv(&self.stem.conv);
        for stage in &self.stages {
            if let Some(down) = &stage.downsample {
                tracer.conv(&down.conv);
            }
            for block in &stage.blocks {
                block.trace(&mut tracer);
            }
        }
        tracer.linear(&self.head.fc);
        Some(tracer.operations())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::trainable;

    fn small() -> ConvNextConfig {
        ConvNextConfig::new([1, 1, 2, 1], [2, 3, 4, 5], 7)
            .with_patch(2)
            .with_height(16)
            .with_width(20)
    }

    #[test]
    fn presets_have_the_known_parameter_counts() {
        let device = Device::flex().autodiff();
        let count = |config: ConvNextConfig| trainable(&config.init(&device).unwrap());
        assert_eq!(count(ConvNextConfig::tiny(1000)), 28_589_128);
        assert_eq!(count(ConvNextConfig::small(1000)), 50_223_688);
        assert_eq!(count(ConvNextConfig::base(1000)), 88_591_464);
        assert_eq!(count(ConvNextConfig::large(1000)), 197_767_336);
    }

    #[test]
    fn forward_has_one_logit_per_class() {
        let device = Device::flex();
        let model = small().init(&device).unwrap();
        let logits = model.forward(Tensor::ones([3, 3, 16, 20], &device));
        assert_eq!(logits.dims(), [3, 7]);
        assert_eq!(model.num_classes(), 7);
    }

    #[test]
    fn later_blocks_drop_more_samples() {
        let model = small().with_drop_path(0.4).init(&Device::flex()).unwrap();
        let blocks = model.stages.iter().flat_map(|stage| &stage.blocks);
        let rates: Vec<f64> = blocks.map(|block| block.drop_path.rate()).collect();
        for (rate, expected) in rates.iter().zip([0.0, 0.1, 0.2, 0.3, 0.4]) {
            assert!((rate - expected).abs() < 1e-12, "{rates:?}");
        }
    }

    #[test]
    fn impossible_configurations_are_named() {
        let message =
            |config: ConvNextConfig| config.init(&Device::flex()).unwrap_err().to_string();
        assert!(message(small().with_height(15)).contains("minimum is 16×16"));
        assert!(message(small().with_patch(0)).contains("`patch`"));
        assert!(message(small().with_drop_path(1.0)).contains("`drop_path`"));
        let config = |depths, widths| ConvNextConfig::new(depths, widths, 7);
        assert!(message(config([1, 0, 1, 1], [2; 4])).contains("`depths`"));
        assert!(message(config([1, usize::MAX, 1, 1], [2; 4])).contains("too many"));
        assert!(message(config([1; 4], [2, 2, usize::MAX, 2])).contains("too large"));
    }
}
