//! MNIST: handwritten digits.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use datasets::{DatasetError, Mnist, RemoteFile, Split};

use super::{AnyDataSet, Opened, downloads};
use crate::config::section::keys;

keys! {
    /// `mnist`: 28×28 handwritten digits, 60000 to train and 10000 to test.
    MnistConfig {
        /// Folder of the files; the download goes there. Default `data/mnist`.
        dir: Option<PathBuf> = None,
    }
}

impl AnyDataSet for MnistConfig {
    downloads!(Mnist, "data/mnist", dir);

    fn open(&self, split: Split, _samples: Option<usize>, _seed: u64) -> Opened {
        Ok(Arc::new(Mnist::open(self.folder(), split)?))
    }
}
