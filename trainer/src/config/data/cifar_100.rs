//! Small colour images of 100 classes.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use datasets::{Cifar100, Cifar100Labels, Dataset, DatasetError, RemoteFile, Split};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::AnyDataSet;
use crate::config::section::names;

names! {
    /// `[data] labels` of CIFAR-100.
    LabelsName {
        /// 100 classes.
        #[default]
        Fine = "fine",
        /// 20 classes of 5 fine ones each.
        Coarse = "coarse",
    }
}

/// `cifar-100`: 32×32 colour images of 100 classes, 50000 to train and 10000 to test.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Cifar100Config {
    /// Folder that holds the files, or will after the download. Default `data/cifar-100`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dir: Option<PathBuf>,
    /// Folder for the unpacked copy of an archive, which the ranks of a node share. Default: beside
    /// the archive, or in the user's cache folder where that cannot be written.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cache_dir: Option<PathBuf>,
    /// Classes: `fine` (100) or `coarse` (20). Default `fine`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub labels: Option<LabelsName>,
}

impl AnyDataSet for Cifar100Config {
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
        Cifar100::missing(self.folder())
    }

    fn download(&self) -> Result<(), DatasetError> {
        Cifar100::download(self.folder())
    }

    fn open(
        &self,
        split: Split,
        _samples: Option<usize>,
        _seed: u64,
    ) -> Result<Arc<dyn Dataset>, DatasetError> {
        let labels = match self.labels {
            Some(LabelsName::Coarse) => Cifar100Labels::Coarse,
            Some(LabelsName::Fine) | None => Cifar100Labels::Fine,
        };
        let dir = self.folder();
        Ok(Arc::new(match &self.cache_dir {
            Some(cache) => Cifar100::open_with_cache(dir, split, labels, cache)?,
            None => Cifar100::open(dir, split, labels)?,
        }))
    }
}

impl Cifar100Config {
    fn folder(&self) -> &Path {
        self.dir.as_deref().unwrap_or(Path::new("data/cifar-100"))
    }
}
