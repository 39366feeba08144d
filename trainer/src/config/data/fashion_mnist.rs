//! Clothes.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use datasets::{Dataset, DatasetError, FashionMnist, RemoteFile, Split};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::AnyDataSet;

/// `fashion-mnist`: 28×28 grey images of clothes, 60000 to train and 10000 to test.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct FashionMnistConfig {
    /// Folder that holds the files, or will after the download. Default `data/fashion-mnist`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dir: Option<PathBuf>,
}

impl AnyDataSet for FashionMnistConfig {
    fn paths(&mut self) -> Vec<(&'static str, &mut Option<PathBuf>)> {
        vec![("data.dir", &mut self.dir)]
    }

    fn dir(&self) -> Option<&Path> {
        self.dir.as_deref()
    }

    fn missing(&self) -> Vec<RemoteFile> {
        FashionMnist::missing(self.folder())
    }

    fn download(&self) -> Result<(), DatasetError> {
        FashionMnist::download(self.folder())
    }

    fn open(
        &self,
        split: Split,
        _samples: Option<usize>,
        _seed: u64,
    ) -> Result<Arc<dyn Dataset>, DatasetError> {
        Ok(Arc::new(FashionMnist::open(self.folder(), split)?))
    }
}

impl FashionMnistConfig {
    fn folder(&self) -> &Path {
        self.dir
            .as_deref()
            .unwrap_or(Path::new("data/fashion-mnist"))
    }
}
