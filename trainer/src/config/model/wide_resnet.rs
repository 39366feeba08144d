//! Wide residual networks.

use burn::tensor::Device;
use datasets::Dataset;

use super::{AnyModel, Built, WithModel, classes};
use crate::config::error::Fault;
use crate::config::section::{keys, names};
use crate::config::validate::{fraction, in_range};

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

keys! {
    /// `wide-resnet`: wide residual networks.
    WideResNetConfig {
        /// `wrn-28-10`, `wrn-16-4` or `olivia`; the other keys change it. Default `wrn-28-10`.
        preset: WidePreset = WidePreset::default(),
        /// Layers with weights, 6n + 4. Default: the preset's; `olivia` has none.
        #[serde(skip_serializing_if = "Option::is_none")]
        depth: Option<usize> = None,
        /// Width factor relative to a plain residual network. Default: the preset's; `olivia` has
        /// none.
        #[serde(skip_serializing_if = "Option::is_none")]
        widen: Option<usize> = None,
        /// Probability of zeroing a value between the convolutions of a block, in [0, 1). Default
        /// 0; `olivia`: 0.01.
        #[serde(skip_serializing_if = "Option::is_none")]
        dropout: Option<f64> = None,
    }
}

impl AnyModel for WideResNetConfig {
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

    fn check(&self) -> Result<(), Fault> {
        let sizes = [("model.depth", self.depth), ("model.widen", self.widen)];
        for (key, size) in sizes {
            match size {
                Some(size) if self.preset == WidePreset::Olivia => {
                    return Err(Fault::in_key(
                        key,
                        format!("`{key}` = {size} has no effect with the preset `olivia`"),
                    )
                    .help("remove it, or choose another model.preset"));
                }
                Some(size) => in_range(key, size as u64, 1, 10_000)?,
                None => {}
            }
        }
        if let Some(depth) = self.depth.filter(|depth| depth % 6 != 4 || *depth < 10) {
            return Err(Fault::in_key(
                "model.depth",
                format!(
                    "`model.depth` = {depth} must be 6n + 4 with n ≥ 1, for example 10, 16, 22 or \
                     28"
                ),
            )
            .help("for example 10, 16, 22, 28, 40"));
        }
        self.dropout
            .map_or(Ok(()), |rate| fraction("model.dropout", rate))
    }

    fn build<W: WithModel>(&self, data: &dyn Dataset, device: &Device, then: W) -> Built<W> {
        let (shape, classes) = (data.shape(), classes(data));
        let dropout = self.dropout.unwrap_or_default();
        if self.preset == WidePreset::Olivia {
            let model = models::PlainWideResNetConfig::olivia(classes)
                .with_channels(shape.channels)
                .with_height(shape.height)
                .with_width(shape.width)
                .with_dropout(dropout);
            return Ok(then.call(model.init(device)?));
        }
        // Filled in when the configuration was read.
        let (depth, widen) = (self.depth.unwrap_or(28), self.widen.unwrap_or(10));
        let model = models::WideResNetConfig::new(depth, widen, classes)
            .with_channels(shape.channels)
            .with_dropout(dropout);
        Ok(then.call(model.init(device)?))
    }
}
