//! Vision transformers (Dosovitskiy et al. 2021, <https://arxiv.org/abs/2010.11929>), as in timm.

mod attention;
mod block;
mod config;

use burn::module::{Module, Param};
use burn::nn::conv::Conv2d;
use burn::nn::{Dropout, Linear};
use burn::tensor::Tensor;
use burn_dist::autograd::boundary;
use kernels::ops;

use crate::classifier::classifies;
use crate::flops::Tracer;
use crate::layers::{dropout, read};
use crate::path::{Path, then_nothing};
use crate::positions::Positions;
use crate::{ImageClassifier, LayerNorm};
use block::{Block, Wanted};
pub use config::{Pooling, VitConfig};

/// Patches become tokens, go through blocks of attention and MLP, and are classified.
///
/// The classifier gets one token or the mean of all patches.
///
/// With ViT-Tiny for 32×32 images an image goes through 3×32×32 → 64 patches of 4×4 → 65×192 (the
/// class token is the first) → 12 blocks → 192 → classes. Parameters have timm's names.
///
/// Tokens that no logit depends on are not computed: with a class token, the last block computes
/// only that token after its attention. This saves 6 % of ViT-Tiny's arithmetic.
#[derive(Module, Debug)]
pub struct Vit {
    cls_token: Option<Param<Tensor<3>>>,
    pos_embed: Param<Tensor<3>>,
    patch_embed: PatchEmbed,
    pos_drop: Dropout,
    blocks: Vec<Block>,
    /// Applied before the class token is selected.
    norm: Option<LayerNorm>,
    /// Applied after the mean over all patches.
    fc_norm: Option<LayerNorm>,
    head: Linear,
    classes: usize,
    /// Patches of an image, in rows and columns.
    grid: [usize; 2],
}

/// One convolution whose windows do not overlap.
#[derive(Module, Debug)]
struct PatchEmbed {
    proj: Conv2d,
}

impl PatchEmbed {
    /// Maps \[batch, channels, height, width\] to \[batch, patches, dim\].
    fn forward(&self, path: Path, images: Tensor<4>) -> Tensor<3> {
        path.tokens(path.conv(&self.proj, images, then_nothing()))
    }
}

impl Vit {
    /// Computes logits `[batch, classes]` of images `[batch, channels, height, width]`.
    ///
    /// Images must have the configured size. Dropout and drop-path are active only on an autodiff
    /// device. For evaluation use the module that [`Module::valid`] returns.
    pub fn forward(&self, images: Tensor<4>) -> Tensor<2> {
        let (path, images) = Path::enter(images);
        let x = self.patch_embed.forward(path, boundary(images));
        let x = ops::embed(x, self.cls_token.as_ref().map(read), read(&self.pos_embed));
        let mut x = dropout(&self.pos_drop, x);
        for (block, wanted) in self.blocks() {
            x = block.forward(path, x, wanted);
        }
        let x = boundary(x);
        let mut x: Tensor<2> = match &self.norm {
            Some(norm) => norm.forward(x.narrow(1, 0, 1)).squeeze_dim(1),
            None => ops::mean_of_tokens(x),
        };
        if let Some(norm) = &self.fc_norm {
            x = norm.forward(x);
        }
        path.leave(path.linear(&self.head, x, then_nothing()))
    }

    /// The position embedding.
    pub(crate) fn positions(&self) -> Positions {
        Positions {
            path: "pos_embed".to_owned(),
            grid: self.grid,
            prefix: usize::from(self.cls_token.is_some()),
        }
    }

    /// The blocks with the tokens that each must compute: only the class token continues after the
    /// last.
    fn blocks(&self) -> impl Iterator<Item = (&Block, Wanted)> {
        self.blocks.iter().enumerate().map(|(index, block)| {
            let last = index + 1 == self.blocks.len();
            let wanted = match last && self.cls_token.is_some() {
                true => Wanted::First,
                false => Wanted::All,
            };
            (block, wanted)
        })
    }
}

impl ImageClassifier for Vit {
    classifies!();

    fn flops(&self, image: [usize; 3]) -> Option<u64> {
        let mut tracer = Tracer::new(image);
        tracer.conv(&self.patch_embed.proj);
        let [_, tokens, _] = self.pos_embed.lazy_shape().dims::<3>();
        for (block, wanted) in self.blocks() {
            block.trace(tokens, wanted, &mut tracer);
        }
        tracer.linear(&self.head);
        Some(tracer.operations())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::trainable;
    use burn::tensor::Device;

    fn imagenet(config: VitConfig) -> VitConfig {
        config.with_height(224).with_width(224).with_patch(16)
    }

    fn small() -> VitConfig {
        VitConfig::new(8, 2, 2, 7).with_height(8).with_width(12)
    }

    #[test]
    fn presets_have_the_known_parameter_counts() {
        let device = Device::flex().autodiff();
        let count = |config: VitConfig| trainable(&config.init(&device).unwrap());
        assert_eq!(count(imagenet(VitConfig::tiny(1000))), 5_717_416);
        assert_eq!(count(VitConfig::vit_s_16(1000)), 22_050_664);
        assert_eq!(count(VitConfig::vit_b_16(1000)), 86_567_656);
        assert_eq!(count(VitConfig::vit_l_16(1000)), 304_326_632);
        assert_eq!(count(VitConfig::tiny(100)), 5_380_132);
        assert_eq!(count(VitConfig::small(100)), 21_376_996);
        assert_eq!(count(VitConfig::base(100)), 85_221_220);
        assert_eq!(count(VitConfig::large(100)), 302_531_684);
    }

    #[test]
    fn forward_has_one_logit_per_class() {
        let device = Device::flex();
        for pooling in [Pooling::ClassToken, Pooling::Mean] {
            let model = small().with_pooling(pooling).init(&device).unwrap();
            let logits = model.forward(Tensor::ones([3, 3, 8, 12], &device));
            assert_eq!(logits.dims(), [3, 7]);
            assert_eq!(model.num_classes(), 7);
        }
    }

    #[test]
    fn evaluation_drops_nothing() {
        let device = Device::flex();
        let model = small()
            .with_dropout(0.5)
            .with_drop_path(0.5)
            .init(&device.clone().autodiff())
            .unwrap();
        let images = |device: &Device| Tensor::<4>::ones([4, 3, 8, 12], device);
        let evaluate = || model.valid().forward(images(&device)).into_data();
        assert_eq!(evaluate(), evaluate());
        let train = || {
            model
                .forward(images(&device.clone().autodiff()))
                .into_data()
        };
        assert_ne!(train(), train());
    }

    #[test]
    fn impossible_configurations_are_named() {
        let message = |config: VitConfig| config.init(&Device::flex()).unwrap_err().to_string();
        assert!(message(small().with_patch(3)).contains("patches of 3"));
        assert!(message(small().with_patch(0)).contains("`patch`"));
        assert!(message(VitConfig::new(8, 2, 3, 7)).contains("`heads`"));
        assert!(message(VitConfig::new(8, usize::MAX, 2, 7)).contains("too many"));
        assert!(message(small().with_drop_path(1.0)).contains("`drop_path`"));
        assert!(message(VitConfig::new(usize::MAX - 1, 2, 2, 7)).contains("too large"));
    }
}
