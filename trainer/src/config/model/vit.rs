//! Vision transformers.

use burn::tensor::Device;
use datasets::Dataset;
use models::Pooling;

use super::{AnyModel, Built, WithModel, classes};
use crate::config::error::Fault;
use crate::config::section::{keys, names};
use crate::config::validate::{fraction, in_range};

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
        /// Width 1024, 24 blocks, 16 heads.
        Large = "large",
        /// `small` with patches of 16 pixels, for images of 224.
        S16 = "s-16",
        /// `base` with patches of 16 pixels, for images of 224.
        B16 = "b-16",
        /// `large` with patches of 16 pixels, for images of 224.
        L16 = "l-16",
    }
}

names! {
    /// `[model] pooling` of a vision transformer.
    PoolingName {
        /// A learned class token.
        #[default]
        ClassToken = "class-token",
        /// The mean over all patches.
        Mean = "mean",
    }
}

keys! {
    /// `vit`: vision transformers.
    VitConfig {
        /// `tiny`, `small`, `base`, `large`, `s-16`, `b-16` or `l-16`; the other keys change it.
        /// Default `tiny`.
        preset: VitPreset = VitPreset::default(),
        /// Side of a patch in pixels; it must divide the image sides. Default 4; `s-16`, `b-16` and
        /// `l-16`: 16.
        #[serde(skip_serializing_if = "Option::is_none")]
        #[schemars(extend("unit" = "pixels"))]
        patch: Option<usize> = None,
        /// Width of the tokens. Default: the preset's.
        #[serde(skip_serializing_if = "Option::is_none")]
        dim: Option<usize> = None,
        /// Number of blocks. Default: the preset's.
        #[serde(skip_serializing_if = "Option::is_none")]
        depth: Option<usize> = None,
        /// Number of attention heads; it must divide `dim`. Default: the preset's.
        #[serde(skip_serializing_if = "Option::is_none")]
        heads: Option<usize> = None,
        /// Width of the hidden layer in a block as a multiple of `dim`. Default 4.
        #[serde(skip_serializing_if = "Option::is_none")]
        mlp_ratio: Option<usize> = None,
        /// The input of the classifier: `class-token` or `mean` (of all patches). Default
        /// `class-token`.
        pooling: PoolingName = PoolingName::default(),
        /// Probability of zeroing a value after the embedding and after each linear layer except
        /// queries, keys and values, in [0, 1). Default 0.
        dropout: f64 = 0.0,
        /// Probability that a sample skips the last block, in [0, 1). It rises linearly from 0 at
        /// the first block. Default 0.
        drop_path: f64 = 0.0,
    }
}

impl AnyModel for VitConfig {
    fn fill(&mut self) {
        let (dim, depth, heads, patch) = match self.preset {
            VitPreset::Tiny => (192, 12, 3, 4),
            VitPreset::Small => (384, 12, 6, 4),
            VitPreset::Base => (768, 12, 12, 4),
            VitPreset::Large => (1024, 24, 16, 4),
            VitPreset::S16 => (384, 12, 6, 16),
            VitPreset::B16 => (768, 12, 12, 16),
            VitPreset::L16 => (1024, 24, 16, 16),
        };
        self.patch.get_or_insert(patch);
        self.dim.get_or_insert(dim);
        self.depth.get_or_insert(depth);
        self.heads.get_or_insert(heads);
        self.mlp_ratio.get_or_insert(4);
    }

    fn check(&self) -> Result<(), Fault> {
        let sizes = [
            ("model.patch", self.patch, 4096),
            ("model.dim", self.dim, 65_536),
            ("model.depth", self.depth, 1000),
            ("model.heads", self.heads, 1024),
            ("model.mlp_ratio", self.mlp_ratio, 64),
        ];
        for (key, size, most) in sizes {
            if let Some(size) = size {
                in_range(key, size as u64, 1, most)?;
            }
        }
        if let (Some(dim), Some(heads)) = (self.dim, self.heads)
            && dim % heads != 0
        {
            return Err(Fault::in_key(
                "model.heads",
                format!("`model.heads` = {heads} does not divide `model.dim` = {dim}"),
            ));
        }
        fraction("model.dropout", self.dropout)?;
        fraction("model.drop_path", self.drop_path)
    }

    fn build<W: WithModel>(&self, data: &dyn Dataset, device: &Device, then: W) -> Built<W> {
        let shape = data.shape();
        let mut vit = match self.preset {
            VitPreset::Tiny => models::VitConfig::tiny(classes(data)),
            VitPreset::Small => models::VitConfig::small(classes(data)),
            VitPreset::Base => models::VitConfig::base(classes(data)),
            VitPreset::Large => models::VitConfig::large(classes(data)),
            VitPreset::S16 => models::VitConfig::vit_s_16(classes(data)),
            VitPreset::B16 => models::VitConfig::vit_b_16(classes(data)),
            VitPreset::L16 => models::VitConfig::vit_l_16(classes(data)),
        };
        vit.channels = shape.channels;
        vit.height = shape.height;
        vit.width = shape.width;
        vit.patch = self.patch.unwrap_or(vit.patch);
        vit.dim = self.dim.unwrap_or(vit.dim);
        vit.depth = self.depth.unwrap_or(vit.depth);
        vit.heads = self.heads.unwrap_or(vit.heads);
        vit.mlp_ratio = self.mlp_ratio.unwrap_or(vit.mlp_ratio);
        vit.pooling = match self.pooling {
            PoolingName::ClassToken => Pooling::ClassToken,
            PoolingName::Mean => Pooling::Mean,
        };
        vit.dropout = self.dropout;
        vit.drop_path = self.drop_path;
        Ok(then.call(vit.init(device)?))
    }
}
