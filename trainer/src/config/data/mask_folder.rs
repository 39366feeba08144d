//! A folder of images and masks.

use std::path::{Path, PathBuf};

use super::AnyDataSet;
use crate::config::error::Fault;
use crate::config::section::keys;
use crate::config::validate::in_range;

keys! {
    /// `mask-folder`: images and masks for the task `segmentation`. The folder has `train/images`,
    /// `train/masks`, and the same in `val`, `test` or both. An image and its mask share a name
    /// without its ending. Masks are indexed or grey PNG files, and 255 marks pixels that do not
    /// count.
    MaskFolderConfig {
        /// Folder that holds the files. Default `data/mask-folder`.
        #[serde(skip_serializing_if = "Option::is_none")]
        dir: Option<PathBuf> = None,
        /// Side to which images and masks are scaled. Default 128.
        #[schemars(extend("unit" = "pixels"))]
        size: usize = 128,
        /// Number of classes: the labels are smaller. Default 2.
        classes: usize = 2,
    }
}

impl AnyDataSet for MaskFolderConfig {
    fn task(&self) -> &'static str {
        "segmentation"
    }

    fn check(&self) -> Result<(), Fault> {
        in_range("data.size", self.size as u64, 8, 4096)?;
        in_range("data.classes", self.classes as u64, 2, 255)
    }

    fn paths(&mut self) -> Vec<(&'static str, &mut Option<PathBuf>)> {
        vec![("data.dir", &mut self.dir)]
    }

    fn dir(&self) -> Option<&Path> {
        self.dir.as_deref()
    }

    fn folder(&self) -> &Path {
        self.dir().unwrap_or(Path::new("data/mask-folder"))
    }

    fn has_val(&self) -> bool {
        self.folder().join("val").is_dir()
    }

    fn has_test(&self) -> bool {
        self.folder().join("test").is_dir()
    }
}
