//! Drawn shapes with masks.

use super::AnyDataSet;
use crate::config::error::Fault;
use crate::config::section::keys;
use crate::config::validate::in_range;

keys! {
    /// `shapes`: discs, squares and triangles for the task `segmentation`, drawn by a generator;
    /// 2048 images to train and 512 to test. Needs no files. Pixels at the edge of a shape do not
    /// count.
    ShapesConfig {
        /// Side of the images. Default 32.
        #[schemars(extend("unit" = "pixels"))]
        size: usize = 32,
    }
}

impl AnyDataSet for ShapesConfig {
    fn task(&self) -> &'static str {
        "segmentation"
    }

    fn check(&self) -> Result<(), Fault> {
        in_range("data.size", self.size as u64, 8, 4096)
    }
}
