//! WRN-d-k: residual networks with pre-activation blocks, k times wider (Zagoruyko & Komodakis
//! 2016, <https://arxiv.org/abs/1605.07146>).

use burn::config::Config;
use burn::module::Module;
use burn::nn::conv::Conv2d;
use burn::nn::{Dropout, DropoutConfig, Initializer, Linear};
use burn::tensor::{Device, Tensor};
use burn_dist::autograd::boundary;

use crate::classifier::{classifies, is_traced};
use crate::flops::Tracer;
use crate::layers::{Draw, conv, linear};
use crate::norm::BatchNorm2d;
use crate::path::{Path, then_nothing, then_plus};
use crate::{ImageClassifier, ModelError, check};

const NAME: &str = "wide-resnet";
/// Layers outside the blocks: the first convolution, the shortcuts' two, the linear layer.
const OUTSIDE: usize = 4;
/// Convolutions in one block of each of the three groups.
const PER_BLOCK: usize = 6;

/// Sizes and dropout rate of a [`WideResNet`].
///
/// | preset | parameters with 10 classes | with 100 |
/// |---|---|---|
/// | [`wrn_16_4`](Self::wrn_16_4) | 2,748,890 | 2,772,020 |
/// | [`wrn_28_10`](Self::wrn_28_10) | 36,479,194 | 36,536,884 |
#[derive(Config, Debug)]
pub struct WideResNetConfig {
    /// Layers with weights: 6n + 4 for n blocks in each group.
    pub depth: usize,
    /// Width as a multiple of a residual network's.
    pub widen: usize,
    /// Number of classes.
    pub classes: usize,
    /// Channels of the images.
    #[config(default = 3)]
    pub channels: usize,
    /// Channels after the first convolution, and of the first group before widening.
    ///
    /// They double from group to group.
    #[config(default = 16)]
    pub base: usize,
    /// Dropout rate between the two convolutions of a block.
    #[config(default = 0.0)]
    pub dropout: f64,
}

impl WideResNetConfig {
    /// WRN-16-4, without dropout.
    pub fn wrn_16_4(classes: usize) -> Self {
        Self::new(16, 4, classes)
    }

    /// WRN-28-10, without dropout.
    pub fn wrn_28_10(classes: usize) -> Self {
        Self::new(28, 10, classes)
    }

    /// Builds the model on `device`.
    ///
    /// Convolutions are normal with variance 2/fan_out. The linear layer has PyTorch's default and
    /// zero biases, as in the reference.
    ///
    /// # Errors
    /// Fails for a size of zero, a depth that is not 6n + 4 with 1 ≤ n ≤ 10,000, or a dropout rate
    /// outside `[0, 1)`.
    pub fn init(&self, device: &Device) -> Result<WideResNet, ModelError> {
        let blocks = self.checked_blocks()?;
        let first = self.base;
        let widths = [1, 2, 4].map(|double| first * double * self.widen);
        let group = |inputs, outputs, stride| Group {
            layer: (0..blocks)
                .map(|block| match block {
                    0 => self.block(inputs, outputs, stride, device),
                    _ => self.block(outputs, outputs, 1, device),
                })
                .collect(),
        };
        let mut fc = linear(widths[2], self.classes, device);
        fc.bias = Some(Initializer::Zeros.init([self.classes], device));
        Ok(WideResNet {
            conv1: conv([self.channels, first], 3, 1, Draw::KaimingFanOut, device),
            block1: group(first, widths[0], 1),
            block2: group(widths[0], widths[1], 2),
            block3: group(widths[1], widths[2], 2),
            bn1: BatchNorm2d::new(widths[2], device),
            fc,
            classes: self.classes,
        })
    }

    fn block(&self, inputs: usize, outputs: usize, stride: usize, device: &Device) -> Block {
        let conv =
            |channels, kernel, stride| conv(channels, kernel, stride, Draw::KaimingFanOut, device);
        Block {
            bn1: BatchNorm2d::new(inputs, device),
            conv1: conv([inputs, outputs], 3, stride),
            bn2: BatchNorm2d::new(outputs, device),
            dropout: DropoutConfig::new(self.dropout).init(),
            conv2: conv([outputs, outputs], 3, 1),
            conv_shortcut: (inputs != outputs).then(|| conv([inputs, outputs], 1, stride)),
        }
    }

    /// Checks the configuration and returns the number of blocks in a group.
    fn checked_blocks(&self) -> Result<usize, ModelError> {
        check::sizes(
            NAME,
            &[
                ("widen", self.widen),
                ("classes", self.classes),
                ("channels", self.channels),
                ("base", self.base),
            ],
        )?;
        check::rates(NAME, &[("dropout", self.dropout)])?;
        if self.depth < OUTSIDE + PER_BLOCK || !(self.depth - OUTSIDE).is_multiple_of(PER_BLOCK) {
            return Err(ModelError::Depth {
                model: NAME,
                depth: self.depth,
                wanted: "6n + 4 with n at least 1: 10, 16, 22, 28, ...",
            });
        }
        let blocks = (self.depth - OUTSIDE) / PER_BLOCK;
        check::blocks(NAME, blocks)?;
        let widest = self.widen.saturating_mul(self.base).saturating_mul(4);
        check::weight(NAME, &[widest, widest, 3, 3])?;
        check::weight(NAME, &[widest, self.classes])?;
        check::weight(NAME, &[self.channels, self.base, 3, 3])?;
        Ok(blocks)
    }
}

/// conv 3×3, three groups of pre-activation blocks, BN, ReLU, mean over all positions, linear.
///
/// With k = 10 an image goes through 3×32×32 → 16×32×32 → 160×32×32 → 320×16×16 → 640×8×8 → 640 →
/// classes. Parameters have the names of the common PyTorch implementation (`block1.layer.0.conv1`,
/// …), with `conv_shortcut` for `convShortcut`.
#[derive(Module, Debug)]
pub struct WideResNet {
    conv1: Conv2d,
    block1: Group,
    block2: Group,
    block3: Group,
    bn1: BatchNorm2d,
    fc: Linear,
    classes: usize,
}

/// Blocks of one width.
#[derive(Module, Debug)]
struct Group {
    layer: Vec<Block>,
}

/// BN, ReLU, conv 3×3, BN, ReLU, dropout, conv 3×3, plus the input. If the width changes, the
/// shortcut is a 1×1 convolution of the activated input.
#[derive(Module, Debug)]
struct Block {
    bn1: BatchNorm2d,
    conv1: Conv2d,
    bn2: BatchNorm2d,
    dropout: Dropout,
    conv2: Conv2d,
    conv_shortcut: Option<Conv2d>,
}

impl Block {
    fn trace(&self, tracer: &mut Tracer) {
        if let Some(conv) = &self.conv_shortcut {
            tracer.side(conv);
        }
        tracer.conv(&self.conv1);
        tracer.conv(&self.conv2);
    }

    fn forward(&self, path: Path, x: Tensor<4>) -> Tensor<4> {
        let x = boundary(x);
        let activated = path.batch_norm(&self.bn1, x.clone(), true);
        let shortcut = match &self.conv_shortcut {
            Some(conv) => path.conv(conv, activated.clone(), then_nothing()),
            None => x,
        };
        let x = path.conv(&self.conv1, activated, then_nothing());
        let x = path.batch_norm_relu_dropout(&self.bn2, &self.dropout, x);
        path.conv(&self.conv2, x, then_plus(shortcut))
    }
}

impl WideResNet {
    /// Computes logits `[batch, classes]` of images `[batch, channels, height, width]`.
    ///
    /// Dropout and batch statistics are active only on an autodiff device. For evaluation use the
    /// module that [`Module::valid`] returns.
    pub fn forward(&self, images: Tensor<4>) -> Tensor<2> {
        let (path, images) = Path::enter(images);
        let mut x = path.conv(&self.conv1, boundary(images), then_nothing());
        for group in [&self.block1, &self.block2, &self.block3] {
            for block in &group.layer {
                x = block.forward(path, x);
            }
        }
        let x = path.batch_norm(&self.bn1, boundary(x), true);
        path.leave(path.linear(&self.fc, path.mean(x), then_nothing()))
    }
}

impl ImageClassifier for WideResNet {
    classifies!();
    is_traced!();
}

impl WideResNet {
    /// Follows an image through all convolutions.
    fn trace(&self, image: [usize; 3]) -> Tracer {
        let mut tracer = Tracer::new(image);
        tracer.conv(&self.conv1);
        for group in [&self.block1, &self.block2, &self.block3] {
            for block in &group.layer {
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

    #[test]
    fn presets_have_the_known_parameter_counts() {
        let device = Device::flex().autodiff();
        let count = |config: WideResNetConfig| trainable(&config.init(&device).unwrap());
        assert_eq!(count(WideResNetConfig::wrn_16_4(10)), 2_748_890);
        assert_eq!(count(WideResNetConfig::wrn_16_4(100)), 2_772_020);
        assert_eq!(count(WideResNetConfig::wrn_28_10(10)), 36_479_194);
        assert_eq!(count(WideResNetConfig::wrn_28_10(100)), 36_536_884);
    }

    #[test]
    fn forward_has_one_logit_per_class() {
        let device = Device::flex();
        let model = WideResNetConfig::new(10, 1, 7)
            .with_channels(1)
            .init(&device)
            .unwrap();
        let logits = model.forward(Tensor::zeros([2, 1, 12, 9], &device));
        assert_eq!(logits.dims(), [2, 7]);
        assert_eq!(model.num_classes(), 7);
    }

    #[test]
    fn impossible_configurations_are_named() {
        let message =
            |config: WideResNetConfig| config.init(&Device::flex()).unwrap_err().to_string();
        for depth in [0, 4, 9, 27] {
            assert!(message(WideResNetConfig::new(depth, 1, 10)).contains("6n + 4"));
        }
        let deepest = usize::MAX / 6 * 6 - 2;
        assert!(message(WideResNetConfig::new(deepest, 1, 10)).contains("too many"));
        assert!(message(WideResNetConfig::new(10, 0, 10)).contains("`widen`"));
        assert!(message(WideResNetConfig::new(10, usize::MAX / 2, 10)).contains("too large"));
        let config = WideResNetConfig::new(10, 1, 10).with_dropout(1.0);
        assert!(message(config).contains("`dropout`"));
    }
}
