//! Small colour images of 10 classes.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use datasets::{Cifar10, Dataset, DatasetError, RemoteFile, Split};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::AnyDataSet;

/// `cifar-10`: 32×32 colour images of 10 classes, 50000 to train and 10000 to test.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Cifar10Config {
    /// Folder that holds the files, or will after the download. Default `data/cifar-10`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dir: Option<PathBuf>,
    /// Folder for the unpacked copy of an archive, which the ranks of a node share. Default: beside
    /// the archive, or in the user's cache folder where that cannot be written.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cache_dir: Option<PathBuf>,
}

impl AnyDataSet for Cifar10Config {
    fn paths(&mut self) -> Vec<(&'static str, &mut Option<PathBuf>)> {
        vec![
            ("data.dir", &mut self.dir),
            ("data.cache_dir", &mut self.cache_dir),
        ]
    }

    fn dir(&self) -> Option<&Path> {
        self.dir.as_deref()
    }

    fn missing(&self) -> Vec<RemoteFile> {
        Cifar10::missing(self.folder())
    }

    fn download(&self) -> Result<(), DatasetError> {
        Cifar10::download(self.folder())
    }

    fn open(
        &self,
        split: Split,
        _samples: Option<usize>,
        _seed: u64,
    ) -> Result<Arc<dyn Dataset>, DatasetError> {
        let dir = self.folder();
        Ok(Arc::new(match &self.cache_dir {
            Some(cache) => Cifar10::open_with_cache(dir, split, cache)?,
            None => Cifar10::open(dir, split)?,
        }))
    }
}

impl Cifar10Config {
    fn folder(&self) -> &Path {
        self.dir.as_deref().unwrap_or(Path::new("data/cifar-10"))
    }
}
