//! CIFAR-10: small color images of 10 classes.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use datasets::{Cifar10, DatasetError, RemoteFile, Split};

use super::{AnyDataSet, Opened, downloads};
use crate::config::section::keys;

keys! {
    /// `cifar-10`: 32×32 color images of 10 classes, 50000 to train and 10000 to test.
    Cifar10Config {
        /// Folder of the files; the download goes there. Default `data/cifar-10`.
        dir: Option<PathBuf> = None,
        /// Folder for the unpacked archive, shared by the ranks of a node. Default: beside the
        /// archive, or the user's cache folder if that is not writable.
        cache_dir: Option<PathBuf> = None,
    }
}

impl AnyDataSet for Cifar10Config {
    downloads!(Cifar10, "data/cifar-10", dir, cache_dir);

    fn open(&self, split: Split, _samples: Option<usize>, _seed: u64) -> Opened {
        let dir = self.folder();
        Ok(Arc::new(match &self.cache_dir {
            Some(cache) => Cifar10::open_with_cache(dir, split, cache)?,
            None => Cifar10::open(dir, split)?,
        }))
    }
}
