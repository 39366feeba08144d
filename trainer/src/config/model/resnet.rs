//! Residual networks.

use burn::tensor::Device;
use datasets::Dataset;
use models::Stem;

use super::{AnyModel, Built, WithModel, classes};
use crate::config::error::Fault;
use crate::config::section::{keys, names};

/// Maximum side of images, in pixels, for a stem that keeps their size.
const SMALL_IMAGE: usize = 64;

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

keys! {
    /// `resnet`: residual networks.
    ResNetConfig {
        /// 18, 34, 50, 101 or 152. Default 18.
        depth: usize = 18,
        /// The first layers: `cifar` (one 3×3 convolution), `imagenet` (a 7×7 convolution and a
        /// pooling, both with stride 2) or `auto` (`cifar` for images of up to 64 pixels). Default
        /// `auto`.
        stem: StemName = StemName::Auto,
    }
}

/// Makes the network with this number of layers for a number of classes.
fn preset(depth: usize) -> Option<fn(usize) -> models::ResNetConfig> {
    match depth {
        18 => Some(models::ResNetConfig::resnet18),
        34 => Some(models::ResNetConfig::resnet34),
        50 => Some(models::ResNetConfig::resnet50),
        101 => Some(models::ResNetConfig::resnet101),
        152 => Some(models::ResNetConfig::resnet152),
        _ => None,
    }
}

impl AnyModel for ResNetConfig {
    fn check(&self) -> Result<(), Fault> {
        match preset(self.depth) {
            Some(_) => Ok(()),
            None => Err(Fault::in_key(
                "model.depth",
                format!(
                    "`model.depth` = {} must be 18, 34, 50, 101 or 152",
                    self.depth
                ),
            )),
        }
    }

    fn build<W: WithModel>(&self, data: &dyn Dataset, device: &Device, then: W) -> Built<W> {
        let shape = data.shape();
        let stem = match self.stem {
            StemName::Cifar => Stem::Cifar,
            StemName::ImageNet => Stem::ImageNet,
            StemName::Auto if shape.height.max(shape.width) <= SMALL_IMAGE => Stem::Cifar,
            StemName::Auto => Stem::ImageNet,
        };
        // Checked when the configuration was read.
        let model = preset(self.depth).unwrap_or(models::ResNetConfig::resnet18);
        let model = model(classes(data));
        let model = model.with_channels(shape.channels).with_stem(stem);
        Ok(then.call(model.init(device)?))
    }
}
