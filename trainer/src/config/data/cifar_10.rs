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
        /// Whether nothing is written: an archive is unpacked into memory.
        #[serde(skip)]
        #[schemars(skip)]
        read_only: bool = false,
    }
}

impl AnyDataSet for Cifar10Config {
    downloads!(Cifar10, "data/cifar-10", dir, cache_dir);

    fn read_only(&mut self) {
        self.read_only = true;
    }

    fn open(&self, split: Split, _samples: Option<usize>, _seed: u64) -> Opened {
        let (dir, cache) = (self.folder(), self.cache_dir.as_deref());
        Ok(Arc::new(match cache {
            cache if self.read_only => Cifar10::open_read_only(dir, split, cache)?,
            Some(cache) => Cifar10::open_with_cache(dir, split, cache)?,
            None => Cifar10::open(dir, split)?,
        }))
    }
}
