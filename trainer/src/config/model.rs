//! `[model]`: the models and their keys.
//!
//! A preset fills in the keys that are left out, so that the resolved configuration says every
//! size by itself.

use std::path::{Path, PathBuf};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::section::{exactly, names};

/// `[model]`: what is trained. The keys depend on `name`.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
#[serde(tag = "name")]
pub enum ModelConfig {
    /// `cnn`: two 3×3 convolutions, max-pooling and two linear layers.
    #[serde(rename = "cnn")]
    Cnn(CnnConfig),
    /// `csc-cnn`: two stages of 5×5 convolution, batch normalization and max-pooling, and one
    /// linear layer.
    #[serde(rename = "csc-cnn")]
    CscCnn(CscCnnConfig),
    /// `wide-resnet`: wide residual networks.
    #[serde(rename = "wide-resnet")]
    WideResNet(WideResNetConfig),
    /// `resnet`: residual networks.
    #[serde(rename = "resnet")]
    ResNet(ResNetConfig),
    /// `vit`: vision transformers.
    #[serde(rename = "vit")]
    Vit(VitConfig),
}

impl ModelConfig {
    /// The file of weights that training starts from, and whether the last layer does not.
    pub fn weights(&self) -> (Option<&Path>, bool) {
        let (weights, new_head) = match self {
            Self::Cnn(model) => (&model.weights, model.new_head),
            Self::CscCnn(model) => (&model.weights, model.new_head),
            Self::WideResNet(model) => (&model.weights, model.new_head),
            Self::ResNet(model) => (&model.weights, model.new_head),
            Self::Vit(model) => (&model.weights, model.new_head),
        };
        (weights.as_deref(), new_head)
    }

    /// The file of weights that training starts from.
    pub(super) fn weights_mut(&mut self) -> &mut Option<PathBuf> {
        match self {
            Self::Cnn(model) => &mut model.weights,
            Self::CscCnn(model) => &mut model.weights,
            Self::WideResNet(model) => &mut model.weights,
            Self::ResNet(model) => &mut model.weights,
            Self::Vit(model) => &mut model.weights,
        }
    }

    /// Fills in what the preset says and the configuration leaves out.
    pub(super) fn fill(&mut self) {
        match self {
            Self::WideResNet(wide) => wide.fill(),
            Self::Vit(vit) => vit.fill(),
            Self::Cnn(_) | Self::CscCnn(_) | Self::ResNet(_) => {}
        }
    }
}

/// `[model] name = "cnn"`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct CnnConfig {
    /// Output channels of the two convolutions. Default `[32, 64]`.
    #[serde(deserialize_with = "exactly")]
    pub filters: [usize; 2],
    /// Width of the hidden linear layer. Default 128.
    pub hidden: usize,
    /// Probability of zeroing a value after the pooling, in [0, 1). Default 0.25.
    pub dropout_conv: f64,
    /// Probability of zeroing a value before the last layer, in [0, 1). Default 0.5.
    pub dropout_hidden: f64,
    /// File of weights that training starts from, which `trainer export` or PyTorch wrote
    /// (`.safetensors`, `.pt`, `.pth`). Default: random weights.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub weights: Option<PathBuf>,
    /// Whether the last layer starts from random weights although there is a file: for other
    /// classes than those of the file. Default false.
    pub new_head: bool,
}

impl Default for CnnConfig {
    fn default() -> Self {
        Self {
            filters: [32, 64],
            hidden: 128,
            dropout_conv: 0.25,
            dropout_hidden: 0.5,
            weights: None,
            new_head: false,
        }
    }
}

/// `[model] name = "csc-cnn"`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct CscCnnConfig {
    /// File of weights that training starts from, which `trainer export` or PyTorch wrote
    /// (`.safetensors`, `.pt`, `.pth`). Default: random weights.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub weights: Option<PathBuf>,
    /// Whether the last layer starts from random weights although there is a file: for other
    /// classes than those of the file. Default false.
    pub new_head: bool,
}

names! {
    /// `[model] preset` of a wide residual network.
    WidePreset {
        /// Depth 28, widened 10 times: 36.5 million parameters.
        #[default]
        Wrn28x10 = "wrn-28-10",
        /// Depth 16, widened 4 times: 2.8 million parameters.
        Wrn16x4 = "wrn-16-4",
        /// Six blocks of plain convolutions of widths 160, 320 and 640: 17.2 million parameters.
        Olivia = "olivia",
    }
}

/// `[model] name = "wide-resnet"`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct WideResNetConfig {
    /// `wrn-28-10`, `wrn-16-4` or `olivia`; the other keys change it. Default `wrn-28-10`.
    pub preset: WidePreset,
    /// Layers with weights, 6n + 4. Default: the preset's; `olivia` has none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub depth: Option<usize>,
    /// How many times wider than a residual network. Default: the preset's; `olivia` has none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub widen: Option<usize>,
    /// Probability of zeroing a value between the convolutions of a block, in [0, 1). Default 0;
    /// `olivia`: 0.01.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dropout: Option<f64>,
    /// File of weights that training starts from, which `trainer export` or PyTorch wrote
    /// (`.safetensors`, `.pt`, `.pth`). Default: random weights.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub weights: Option<PathBuf>,
    /// Whether the last layer starts from random weights although there is a file: for other
    /// classes than those of the file. Default false.
    pub new_head: bool,
}

impl WideResNetConfig {
    fn fill(&mut self) {
        let (depth, widen, dropout) = match self.preset {
            WidePreset::Wrn28x10 => (Some(28), Some(10), 0.0),
            WidePreset::Wrn16x4 => (Some(16), Some(4), 0.0),
            WidePreset::Olivia => (None, None, 0.01),
        };
        self.depth = self.depth.or(depth);
        self.widen = self.widen.or(widen);
        self.dropout = self.dropout.or(Some(dropout));
    }
}

names! {
    /// `[model] stem` of a residual network.
    StemName {
        /// By the images: `cifar` up to 64 pixels, else `imagenet`.
        #[default]
        Auto = "auto",
        /// One 3×3 convolution.
        Cifar = "cifar",
        /// A 7×7 convolution and a pooling, both with stride 2.
        ImageNet = "imagenet",
    }
}

/// `[model] name = "resnet"`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct ResNetConfig {
    /// 18 or 50. Default 18.
    pub depth: usize,
    /// The first layers: `cifar` (one 3×3 convolution), `imagenet` (a 7×7 convolution and a
    /// pooling, both with stride 2) or `auto` (`cifar` for images of up to 64 pixels). Default
    /// `auto`.
    pub stem: StemName,
    /// File of weights that training starts from, which `trainer export` or PyTorch wrote
    /// (`.safetensors`, `.pt`, `.pth`). Default: random weights.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub weights: Option<PathBuf>,
    /// Whether the last layer starts from random weights although there is a file: for other
    /// classes than those of the file. Default false.
    pub new_head: bool,
}

impl Default for ResNetConfig {
    fn default() -> Self {
        Self {
            depth: 18,
            stem: StemName::Auto,
            weights: None,
            new_head: false,
        }
    }
}

names! {
    /// `[model] preset` of a vision transformer.
    VitPreset {
        /// Width 192, 12 blocks, 3 heads.
        #[default]
        Tiny = "tiny",
        /// Width 384, 12 blocks, 6 heads.
        Small = "small",
        /// Width 768, 12 blocks, 12 heads.
        Base = "base",
        /// `base` with patches of 16 pixels, for images of 224.
        B16 = "b-16",
    }
}

names! {
    /// `[model] pooling` of a vision transformer.
    PoolingName {
        /// The token that is learned for it.
        #[default]
        ClassToken = "class-token",
        /// The mean over all patches.
        Mean = "mean",
    }
}

/// `[model] name = "vit"`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct VitConfig {
    /// `tiny`, `small`, `base` or `b-16`; the other keys change it. Default `tiny`.
    pub preset: VitPreset,
    /// Side of a patch in pixels, which divides the sides of the images. Default 4; `b-16`: 16.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("unit" = "pixels"))]
    pub patch: Option<usize>,
    /// Width of the tokens. Default: the preset's.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dim: Option<usize>,
    /// Number of blocks. Default: the preset's.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub depth: Option<usize>,
    /// Attention heads, which divide `dim`. Default: the preset's.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub heads: Option<usize>,
    /// Width of the hidden layer in a block as a multiple of `dim`. Default 4.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mlp_ratio: Option<usize>,
    /// What is classified: `class-token` or `mean` (of all patches). Default `class-token`.
    pub pooling: PoolingName,
    /// Probability of zeroing a value after the embedding and after each linear layer but that to queries, keys and values, in [0, 1).
    /// Default 0.
    pub dropout: f64,
    /// Probability that a sample skips the last block, in [0, 1); it rises in a straight line from
    /// 0 at the first block. Default 0.
    pub drop_path: f64,
    /// File of weights that training starts from, which `trainer export` or PyTorch wrote
    /// (`.safetensors`, `.pt`, `.pth`); of timm and torchvision too, and of a model for images of another size, whose
    /// position embedding is resampled. Default: random weights.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub weights: Option<PathBuf>,
    /// Whether the last layer starts from random weights although there is a file: for other
    /// classes than those of the file. Default false.
    pub new_head: bool,
}

impl VitConfig {
    fn fill(&mut self) {
        let (dim, heads, patch) = match self.preset {
            VitPreset::Tiny => (192, 3, 4),
            VitPreset::Small => (384, 6, 4),
            VitPreset::Base => (768, 12, 4),
            VitPreset::B16 => (768, 12, 16),
        };
        self.patch.get_or_insert(patch);
        self.dim.get_or_insert(dim);
        self.depth.get_or_insert(12);
        self.heads.get_or_insert(heads);
        self.mlp_ratio.get_or_insert(4);
    }
}
