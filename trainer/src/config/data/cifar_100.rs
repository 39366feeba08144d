//! CIFAR-100: small color images of 100 classes.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use datasets::{Cifar100, Cifar100Labels, DatasetError, RemoteFile, Split};

use super::{AnyDataSet, Opened, downloads};
use crate::config::section::{keys, names};

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

keys! {
    /// `cifar-100`: 32×32 color images of 100 classes, 50000 to train and 10000 to test.
    Cifar100Config {
        /// Folder of the files; the download goes there. Default `data/cifar-100`.
        dir: Option<PathBuf> = None,
        /// Folder for the unpacked archive, shared by the ranks of a node. Default: beside the
        /// archive, or the user's cache folder if that is not writable.
        cache_dir: Option<PathBuf> = None,
        /// Whether nothing is written: an archive is unpacked into memory.
        #[serde(skip)]
        #[schemars(skip)]
        read_only: bool = false,
        /// Classes: `fine` (100) or `coarse` (20). Default `fine`.
        labels: Option<LabelsName> = None,
    }
}

impl AnyDataSet for Cifar100Config {
    downloads!(Cifar100, "data/cifar-100", dir, cache_dir);

    fn read_only(&mut self) {
        self.read_only = true;
    }

    fn open(&self, split: Split, _samples: Option<usize>, _seed: u64) -> Opened {
        let labels = match self.labels {
            Some(LabelsName::Coarse) => Cifar100Labels::Coarse,
            Some(LabelsName::Fine) | None => Cifar100Labels::Fine,
        };
        let dir = self.folder();
        let cache = self.cache_dir.as_deref();
        Ok(Arc::new(match cache {
            cache if self.read_only => Cifar100::open_read_only(dir, split, labels, cache)?,
            Some(cache) => Cifar100::open_with_cache(dir, split, labels, cache)?,
            None => Cifar100::open(dir, split, labels)?,
        }))
    }
}
