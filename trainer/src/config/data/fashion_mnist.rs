//! Fashion-MNIST: images of clothes.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use datasets::{DatasetError, FashionMnist, RemoteFile, Split};

use super::{AnyDataSet, Opened, downloads};
use crate::config::section::keys;

keys! {
    /// `fashion-mnist`: 28×28 grey images of clothes, 60000 to train and 10000 to test.
    FashionMnistConfig {
        /// Folder of the files; the download goes there. Default `data/fashion-mnist`.
        dir: Option<PathBuf> = None,
    }
}

impl AnyDataSet for FashionMnistConfig {
    downloads!(FashionMnist, "data/fashion-mnist", dir);

    fn open(&self, split: Split, _samples: Option<usize>, _seed: u64) -> Opened {
        Ok(Arc::new(FashionMnist::open(self.folder(), split)?))
    }
}
