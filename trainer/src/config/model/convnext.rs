//! ConvNeXt.

use burn::tensor::Device;
use datasets::Dataset;

use super::{AnyModel, Built, WithModel, classes};
use crate::config::error::Fault;
use crate::config::section::{exactly_if_given, keys, names};
use crate::config::validate::{fraction, in_range};

names! {
    /// `[model] preset` of a ConvNeXt.
    ConvNextPreset {
        /// Blocks 3, 3, 9, 3 of 96, 192, 384, 768 channels: 28.6 million parameters.
        #[default]
        Tiny = "tiny",
        /// Blocks 3, 3, 27, 3 of 96, 192, 384, 768 channels: 50.2 million parameters.
        Small = "small",
        /// Blocks 3, 3, 27, 3 of 128, 256, 512, 1024 channels: 88.6 million parameters.
        Base = "base",
        /// Blocks 3, 3, 27, 3 of 192, 384, 768, 1536 channels: 197.8 million parameters.
        Large = "large",
    }
}

keys! {
    /// `convnext`: convolutional networks with the design of vision transformers.
    ConvNextConfig {
        /// `tiny`, `small`, `base` or `large`; the other keys change it. Default `tiny`.
        preset: ConvNextPreset = ConvNextPreset::default(),
        /// Side of the patches of the first convolution in pixels. Images have at least 8 × `patch`
        /// pixels on each side; for 32 pixels use 1 or 2. Default 4.
        #[schemars(extend("unit" = "pixels"))]
        patch: usize = 4,
        /// Number of blocks in each of the four stages. Default: the preset's.
        #[serde(skip_serializing_if = "Option::is_none", deserialize_with = "exactly_if_given")]
        depths: Option<[usize; 4]> = None,
        /// Channels of the four stages. Default: the preset's.
        #[serde(skip_serializing_if = "Option::is_none", deserialize_with = "exactly_if_given")]
        widths: Option<[usize; 4]> = None,
        /// Probability that a sample skips the last block, in [0, 1). It rises linearly from 0 at
        /// the first block. Default 0.
        drop_path: f64 = 0.0,
    }
}

impl AnyModel for ConvNextConfig {
    fn fill(&mut self) {
        let deep = [3, 3, 27, 3];
        let (depths, widths) = match self.preset {
            ConvNextPreset::Tiny => ([3, 3, 9, 3], [96, 192, 384, 768]),
            ConvNextPreset::Small => (deep, [96, 192, 384, 768]),
            ConvNextPreset::Base => (deep, [128, 256, 512, 1024]),
            ConvNextPreset::Large => (deep, [192, 384, 768, 1536]),
        };
        self.depths.get_or_insert(depths);
        self.widths.get_or_insert(widths);
    }

    fn check(&self) -> Result<(), Fault> {
        in_range("model.patch", self.patch as u64, 1, 4096)?;
        for depth in self.depths.iter().flatten() {
            in_range("model.depths", *depth as u64, 1, 1000)?;
        }
        for width in self.widths.iter().flatten() {
            in_range("model.widths", *width as u64, 1, 65_536)?;
        }
        fraction("model.drop_path", self.drop_path)
    }

    fn build<W: WithModel>(&self, data: &dyn Dataset, device: &Device, then: W) -> Built<W> {
        let (shape, classes) = (data.shape(), classes(data));
        let mut model = match self.preset {
            ConvNextPreset::Tiny => models::ConvNextConfig::tiny(classes),
            ConvNextPreset::Small => models::ConvNextConfig::small(classes),
            ConvNextPreset::Base => models::ConvNextConfig::base(classes),
            ConvNextPreset::Large => models::ConvNextConfig::large(classes),
        };
        model.depths = self.depths.unwrap_or(model.depths);
        model.widths = self.widths.unwrap_or(model.widths);
        model.channels = shape.channels;
        model.height = shape.height;
        model.width = shape.width;
        model.patch = self.patch;
        model.drop_path = self.drop_path;
        Ok(then.call(model.init(device)?))
    }
}
