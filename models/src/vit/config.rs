//! Configuration and initialization of vision transformers.

use burn::config::Config;
use burn::module::Param;
use burn::nn::conv::Conv2dConfig;
use burn::nn::{DropoutConfig, Initializer, Linear, LinearConfig};
use burn::tensor::{Device, Tensor};
use serde::{Deserialize, Serialize};

use super::block::Block;
use super::{PatchEmbed, Vit};
use crate::{LayerNorm, ModelError, check};

const NAME: &str = "vit";
/// As in timm; the default of Burn and PyTorch is 1e-5.
const NORM_EPSILON: f64 = 1e-6;
/// Standard deviation of the weights of linear layers and of the position embedding.
const WEIGHT_STD: f64 = 0.02;
/// Standard deviation of the class token.
const TOKEN_STD: f64 = 1e-6;

/// The vector that is classified.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Pooling {
    /// A token before the patches, normalised (`norm`).
    ClassToken,
    /// The mean over all patches, normalised (`fc_norm`), without a class token.
    Mean,
}

/// Sizes and rates of a [`Vit`].
///
/// | preset | dim | depth | heads | parameters, 32×32 in patches of 4, 100 classes | 224×224 in patches of 16, 1000 classes |
/// |---|---|---|---|---|---|
/// | [`tiny`](Self::tiny) | 192 | 12 | 3 | 5,380,132 | 5,717,416 |
/// | [`small`](Self::small) | 384 | 12 | 6 | 21,376,996 | 22,050,664 |
/// | [`base`](Self::base) | 768 | 12 | 12 | 85,221,220 | 86,567,656 ([`vit_b_16`](Self::vit_b_16)) |
/// | [`large`](Self::large) | 1024 | 24 | 16 | 302,531,684 | 304,326,632 ([`vit_l_16`](Self::vit_l_16)) |
#[derive(Config, Debug)]
pub struct VitConfig {
    /// Width of the tokens.
    pub dim: usize,
    /// Number of blocks.
    pub depth: usize,
    /// Number of attention heads; it divides `dim`.
    pub heads: usize,
    /// Number of classes.
    pub classes: usize,
    /// Width of the hidden layer of a block as a multiple of `dim`.
    #[config(default = 4)]
    pub mlp_ratio: usize,
    /// Channels of the images.
    #[config(default = 3)]
    pub channels: usize,
    /// Height of the images in pixels.
    #[config(default = 32)]
    pub height: usize,
    /// Width of the images in pixels.
    #[config(default = 32)]
    pub width: usize,
    /// Side of a patch in pixels; it divides height and width.
    #[config(default = 4)]
    pub patch: usize,
    /// The vector that is classified.
    #[config(default = "Pooling::ClassToken")]
    pub pooling: Pooling,
    /// Dropout rate after the position embedding and after the linear layers of a block.
    #[config(default = 0.0)]
    pub dropout: f64,
    /// Probability that a sample skips the two branches of the last block.
    ///
    /// It rises linearly from 0 at the first block (Huang et al. 2016,
    /// <https://arxiv.org/abs/1603.09382>).
    #[config(default = 0.0)]
    pub drop_path: f64,
}

impl VitConfig {
    /// ViT-Ti.
    pub fn tiny(classes: usize) -> Self {
        Self::new(192, 12, 3, classes)
    }

    /// ViT-S.
    pub fn small(classes: usize) -> Self {
        Self::new(384, 12, 6, classes)
    }

    /// ViT-B.
    pub fn base(classes: usize) -> Self {
        Self::new(768, 12, 12, classes)
    }

    /// ViT-L.
    pub fn large(classes: usize) -> Self {
        Self::new(1024, 24, 16, classes)
    }

    /// ViT-S/16 for images of 224×224.
    pub fn vit_s_16(classes: usize) -> Self {
        Self::small(classes).for_imagenet()
    }

    /// ViT-B/16 for images of 224×224.
    pub fn vit_b_16(classes: usize) -> Self {
        Self::base(classes).for_imagenet()
    }

    /// ViT-L/16 for images of 224×224.
    pub fn vit_l_16(classes: usize) -> Self {
        Self::large(classes).for_imagenet()
    }

    fn for_imagenet(self) -> Self {
        self.with_height(224).with_width(224).with_patch(16)
    }

    /// Builds the model on `device`, initialised as in timm.
    ///
    /// Linear layers and the position embedding are normal with standard deviation 0.02, biases 0,
    /// the class token normal with 1e-6, the patch embedding uniform in ±1/√fan_in.
    ///
    /// # Errors
    /// Fails for a size of zero, more than 10,000 blocks, images that the patches do not divide, a
    /// `dim` that the heads do not divide, or a rate outside `[0, 1)`.
    pub fn init(&self, device: &Device) -> Result<Vit, ModelError> {
        self.check()?;
        let grid = [self.height / self.patch, self.width / self.patch];
        let patches = grid[0] * grid[1];
        let normal = |tokens: usize, std: f64| -> Param<Tensor<3>> {
            Initializer::Normal { mean: 0.0, std }.init([1, tokens, self.dim], device)
        };
        let with_token = self.pooling == Pooling::ClassToken;
        let norm = || layer_norm(self.dim, device);
        let [channels, dim, patch] = [self.channels, self.dim, self.patch];
        Ok(Vit {
            cls_token: with_token.then(|| normal(1, TOKEN_STD)),
            pos_embed: normal(patches + usize::from(with_token), WEIGHT_STD),
            patch_embed: PatchEmbed {
                proj: Conv2dConfig::new([channels, dim], [patch, patch])
                    .with_stride([patch, patch])
                    .init(device),
            },
            pos_drop: DropoutConfig::new(self.dropout).init(),
            blocks: (0..self.depth)
                .map(|index| Block::new(self, self.drop_path_of(index), device))
                .collect(),
            norm: with_token.then(norm),
            fc_norm: (!with_token).then(norm),
            head: linear(dim, self.classes, device),
            classes: self.classes,
            grid,
        })
    }

    fn drop_path_of(&self, block: usize) -> f64 {
        let last = self.depth.saturating_sub(1).max(1);
        self.drop_path * block as f64 / last as f64
    }

    fn check(&self) -> Result<(), ModelError> {
        check::sizes(
            NAME,
            &[
                ("dim", self.dim),
                ("depth", self.depth),
                ("heads", self.heads),
                ("classes", self.classes),
                ("mlp_ratio", self.mlp_ratio),
                ("channels", self.channels),
                ("height", self.height),
                ("width", self.width),
                ("patch", self.patch),
            ],
        )?;
        check::rates(
            NAME,
            &[("dropout", self.dropout), ("drop_path", self.drop_path)],
        )?;
        check::blocks(NAME, self.depth)?;
        if !self.dim.is_multiple_of(self.heads) {
            return Err(ModelError::Heads {
                model: NAME,
                heads: self.heads,
                dim: self.dim,
            });
        }
        if !self.height.is_multiple_of(self.patch) || !self.width.is_multiple_of(self.patch) {
            return Err(ModelError::Patch {
                model: NAME,
                height: self.height,
                width: self.width,
                patch: self.patch,
            });
        }
        let patches = [self.height / self.patch, self.width / self.patch];
        check::weight(NAME, &[patches[0], patches[1], self.dim, 2])?;
        check::weight(NAME, &[self.dim, self.dim, self.mlp_ratio.max(3)])?;
        check::weight(NAME, &[self.dim, self.classes])?;
        check::weight(NAME, &[self.dim, self.channels, self.patch, self.patch])
    }
}

/// A layer normalization with timm's ε.
pub(super) fn layer_norm(dim: usize, device: &Device) -> LayerNorm {
    LayerNorm::new(dim, NORM_EPSILON, device)
}

/// A linear layer with timm's initialization for vision transformers. (timm truncates its normal
/// distribution at a hundred standard deviations.)
pub(super) fn linear(inputs: usize, outputs: usize, device: &Device) -> Linear {
    let mut linear = LinearConfig::new(inputs, outputs)
        .with_initializer(Initializer::Normal {
            mean: 0.0,
            std: WEIGHT_STD,
        })
        .init(device);
    linear.bias = Some(Initializer::Zeros.init([outputs], device));
    linear
}

#[cfg(test)]
mod tests {
    use super::*;

    fn std<const D: usize>(param: &Param<Tensor<D>>) -> f32 {
        param.val().square().mean().sqrt().into_scalar()
    }

    #[test]
    fn weights_are_drawn_as_timm_draws_them() {
        let device = Device::flex();
        device.seed(2);
        // Wide enough for the bounds to hold for any draw: parallel tests draw too.
        let model = VitConfig::new(768, 1, 3, 10).init(&device).unwrap();
        let about = |std: f32, expected: f32| (std / expected - 1.0).abs() < 0.2;
        assert!(about(std(&model.pos_embed), 0.02));
        assert!(about(std(&model.head.weight), 0.02));
        assert!(about(std(&model.cls_token.unwrap()), 1e-6));
        // Uniform in ±1/√fan_in.
        assert!(about(
            std(&model.patch_embed.proj.weight),
            (3.0 * 48f32).sqrt().recip()
        ));
        assert_eq!(std(&model.head.bias.unwrap()), 0.0);
    }

    #[test]
    fn drop_path_rises_in_a_straight_line() {
        let rates = |depth| -> Vec<f64> {
            let config = VitConfig::new(4, depth, 1, 2).with_drop_path(0.2);
            (0..depth).map(|block| config.drop_path_of(block)).collect()
        };
        assert_eq!(rates(1), [0.0]);
        assert_eq!(rates(3), [0.0, 0.1, 0.2]);
    }
}
