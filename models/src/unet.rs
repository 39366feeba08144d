//! U-Net for semantic segmentation (Ronneberger et al. 2015, <https://arxiv.org/abs/1505.04597>).

use burn::config::Config;
use burn::module::Module;
use burn::nn::conv::Conv2d;
use burn::nn::pool::{MaxPool2d, MaxPool2dConfig};
use burn::nn::{Dropout, DropoutConfig, Linear};
use burn::tensor::{Device, Tensor};
use burn_dist::autograd::boundary;

use crate::flops::Tracer;
use crate::layers::{Draw, conv, dropout, linear};
use crate::path::{Path, then_nothing};
use crate::{LayerNorm, ModelError, check};

const NAME: &str = "unet";
const NORM_EPSILON: f64 = 1e-5;
/// Most halvings of the images.
const MOST_LEVELS: usize = 10;

/// A model that gives logits to every pixel of an image.
pub trait Segmenter: Module {
    /// Computes logits `[batch, pixels, classes]` of images `[batch, channels, height, width]`,
    /// with pixels row by row.
    fn forward(&self, images: Tensor<4>) -> Tensor<3>;

    /// Floating-point operations of the forward pass for one image \[channels, height, width\], if
    /// known.
    fn flops(&self, _image: [usize; 3]) -> Option<u64> {
        None
    }
}

/// Sizes and dropout rate of a [`UNet`].
#[derive(Config, Debug)]
pub struct UNetConfig {
    /// Number of classes.
    pub classes: usize,
    /// Channels of the images.
    #[config(default = 3)]
    pub channels: usize,
    /// Height of the images in pixels, a multiple of 2^`levels`.
    #[config(default = 32)]
    pub height: usize,
    /// Width of the images in pixels, a multiple of 2^`levels`.
    #[config(default = 32)]
    pub width: usize,
    /// Channels at full size; each halving doubles them.
    #[config(default = 16)]
    pub filters: usize,
    /// Number of halvings.
    #[config(default = 2)]
    pub levels: usize,
    /// Dropout rate at the smallest size.
    #[config(default = 0.0)]
    pub dropout: f64,
}

impl UNetConfig {
    /// Builds the model on `device`. Convolutions are drawn as in residual networks.
    ///
    /// # Errors
    /// Fails for a size of zero, images that cannot be halved `levels` times, or a rate outside
    /// `[0, 1)`.
    pub fn init(&self, device: &Device) -> Result<UNet, ModelError> {
        self.check()?;
        let filters = |level: usize| self.filters << level;
        let before = |level: usize| match level {
            0 => self.channels,
            _ => filters(level - 1),
        };
        let pair = |inputs, outputs| Pair::new(inputs, outputs, device);
        Ok(UNet {
            down: (0..self.levels)
                .map(|level| pair(before(level), filters(level)))
                .collect(),
            bottom: pair(before(self.levels), filters(self.levels)),
            up: (0..self.levels)
                .map(|level| pair(filters(level + 1) + filters(level), filters(level)))
                .collect(),
            pool: MaxPool2dConfig::new([2; 2]).with_strides([2; 2]).init(),
            drop: DropoutConfig::new(self.dropout).init(),
            head: linear(self.filters, self.classes, device),
        })
    }

    fn check(&self) -> Result<(), ModelError> {
        let sizes = [
            ("classes", self.classes),
            ("channels", self.channels),
            ("height", self.height),
            ("width", self.width),
            ("filters", self.filters),
            ("levels", self.levels),
        ];
        check::sizes(NAME, &sizes)?;
        check::rates(NAME, &[("dropout", self.dropout)])?;
        if self.levels > MOST_LEVELS {
            return Err(ModelError::TooDeep {
                model: NAME,
                blocks: self.levels,
                most: MOST_LEVELS,
            });
        }
        let side = 1 << self.levels;
        if !self.height.is_multiple_of(side) || !self.width.is_multiple_of(side) {
            return Err(ModelError::Halves {
                model: NAME,
                height: self.height,
                width: self.width,
                levels: self.levels,
            });
        }
        check::weight(NAME, &[self.filters, side, self.filters, side, 3 * 9])
    }
}

/// Pairs of convolutions on the way down to the smallest size and up again. On the way up, each
/// pair also gets the activations of its size from the way down.
///
/// Each convolution is followed by a layer normalization over the channels and ReLU. So the result
/// for an image does not depend on the others in its batch. Sizes double by repeating pixels.
#[derive(Module, Debug)]
pub struct UNet {
    /// From the full size down.
    down: Vec<Pair>,
    bottom: Pair,
    /// From the full size down, although they compute in the other direction.
    up: Vec<Pair>,
    pool: MaxPool2d,
    drop: Dropout,
    head: Linear,
}

impl Segmenter for UNet {
    /// Dropout is active only on an autodiff device.
    fn forward(&self, images: Tensor<4>) -> Tensor<3> {
        let (path, mut x) = Path::enter(images);
        let mut skipped = Vec::with_capacity(self.down.len());
        for pair in &self.down {
            let full = pair.forward(path, boundary(x));
            x = path.max_pool(&self.pool, full.clone());
            skipped.push(full);
        }
        x = dropout(&self.drop, self.bottom.forward(path, boundary(x)));
        for (pair, full) in self.up.iter().zip(skipped).rev() {
            x = pair.forward(path, boundary(path.join(path.double(x), full)));
        }
        path.leave(path.linear(&self.head, path.tokens(boundary(x)), then_nothing()))
    }

    fn flops(&self, image: [usize; 3]) -> Option<u64> {
        let mut tracer = Tracer::new(image);
        for pair in &self.down {
            pair.trace(&mut tracer);
            tracer.pool(&self.pool);
        }
        self.bottom.trace(&mut tracer);
        for pair in self.up.iter().rev() {
            let [channels, height, width] = tracer.shape;
            tracer.shape = [channels, 2 * height, 2 * width];
            pair.trace(&mut tracer);
        }
        tracer.linear_on(&self.head, tracer.positions());
        Some(tracer.operations())
    }
}

/// Two 3×3 convolutions, each with normalization and ReLU.
#[derive(Module, Debug)]
struct Pair {
    conv1: Conv2d,
    norm1: LayerNorm,
    conv2: Conv2d,
    norm2: LayerNorm,
}

impl Pair {
    fn new(inputs: usize, outputs: usize, device: &Device) -> Self {
        let conv = |inputs| conv([inputs, outputs], 3, 1, Draw::KaimingFanOut, device);
        let norm = || LayerNorm::new(outputs, NORM_EPSILON, device);
        Self {
            conv1: conv(inputs),
            norm1: norm(),
            conv2: conv(outputs),
            norm2: norm(),
        }
    }

    fn forward(&self, path: Path, x: Tensor<4>) -> Tensor<4> {
        let x = path.conv(&self.conv1, x, then_nothing());
        let x = path.channel_norm_relu(&self.norm1, x);
        let x = path.conv(&self.conv2, x, then_nothing());
        path.channel_norm_relu(&self.norm2, x)
    }

    fn trace(&self, tracer: &mut Tracer) {
        tracer.conv(&self.conv1);
        tracer.conv(&self.conv2);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::trainable;
    use burn::tensor::Distribution;

    fn small() -> UNetConfig {
        UNetConfig::new(5)
            .with_channels(2)
            .with_height(8)
            .with_width(12)
            .with_filters(4)
    }

    #[test]
    fn every_pixel_has_logits_that_depend_on_its_image_alone() {
        let device = Device::flex();
        let model = small().init(&device).unwrap();
        let images = Tensor::<4>::random([3, 2, 8, 12], Distribution::Default, &device);
        let together = model.forward(images.clone());
        assert_eq!(together.dims(), [3, 96, 5]);
        let alone = model.forward(images.narrow(0, 1, 1));
        let most = (alone - together.narrow(0, 1, 1)).abs().max();
        assert!(most.into_scalar::<f32>() < 1e-5);
    }

    #[test]
    fn sizes_are_as_counted_by_hand() {
        let model = small().init(&Device::flex().autodiff()).unwrap();
        let pair = |inputs: u64, outputs: u64| 9 * (inputs + outputs) * outputs;
        let pairs = [(2, 4), (4, 8), (8, 16), (24, 8), (12, 4)];
        let convolutions: u64 = pairs.iter().map(|(a, b)| pair(*a, *b)).sum();
        let norms: u64 = pairs.iter().map(|(_, b)| 4 * b).sum();
        assert_eq!(trainable(&model) as u64, convolutions + norms + 4 * 5 + 5);
        let by_hand = 96 * (pair(2, 4) + pair(12, 4) + 4 * 5)
            + 24 * (pair(4, 8) + pair(24, 8))
            + 6 * pair(8, 16);
        assert_eq!(model.flops([2, 8, 12]), Some(2 * by_hand));
    }

    #[test]
    fn images_that_cannot_be_halved_are_refused() {
        let error = small().with_height(10).init(&Device::flex()).unwrap_err();
        assert!(error.to_string().contains("multiples of 4"), "{error}");
        let error = small().with_levels(11).init(&Device::flex()).unwrap_err();
        assert!(error.to_string().contains("too many"), "{error}");
    }
}
