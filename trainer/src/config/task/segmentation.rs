//! Semantic segmentation.

use super::AnyTask;
use crate::config::metric::Measure;
use crate::config::section::keys;

keys! {
    /// `segmentation`: a class for each pixel of an image. Pixels with the label 255 do not count.
    SegmentationConfig {}
}

/// Metrics beside the loss, which is a mean over pixels.
static MEASURES: [Measure; 2] = [
    Measure::share("mean_iou", "mean IoU"),
    Measure::share("pixel_accuracy", "pixel accuracy"),
];

impl AnyTask for SegmentationConfig {
    fn measures(&self) -> Option<&'static [Measure]> {
        Some(&MEASURES)
    }

    fn monitor(&self) -> &'static str {
        "mean_iou"
    }
}
