//! Handwritten digits.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use datasets::{Dataset, DatasetError, Mnist, RemoteFile, Split};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::AnyDataSet;

/// `mnist`: 28×28 handwritten digits, 60000 to train and 10000 to test.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct MnistConfig {
    /// Folder that holds the files, or will after the download. Default `data/mnist`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dir: Option<PathBuf>,
}

impl AnyDataSet for MnistConfig {
    fn paths(&mut self) -> Vec<(&'static str, &mut Option<PathBuf>)> {
        vec![("data.dir", &mut self.dir)]
    }

    fn dir(&self) -> Option<&Path> {
        self.dir.as_deref()
    }

    fn missing(&self) -> Vec<RemoteFile> {
        Mnist::missing(self.folder())
    }

    fn download(&self) -> Result<(), DatasetError> {
        Mnist::download(self.folder())
    }

    fn open(
        &self,
        split: Split,
        _samples: Option<usize>,
        _seed: u64,
    ) -> Result<Arc<dyn Dataset>, DatasetError> {
        Ok(Arc::new(Mnist::open(self.folder(), split)?))
    }
}

impl MnistConfig {
    fn folder(&self) -> &Path {
        self.dir.as_deref().unwrap_or(Path::new("data/mnist"))
    }
}
