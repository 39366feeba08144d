//! CIFAR-10: ten classes, one label byte, training images in five files.

use std::path::Path;

use super::locate::{self, Unpack};
use super::{Cifar, Label, MIRRORS, Published};
use crate::delegate::{delegate_dataset, downloads};
use crate::download::{Downloader, Form, RemoteFile};
use crate::{DatasetError, Split};

const PUBLISHED: Published = Published {
    name: "CIFAR-10",
    archive: RemoteFile {
        name: "cifar-10-binary.tar.gz",
        form: Form::Stored,
        sha256: "c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd",
        len: 170_052_171,
    },
    folder: "cifar-10-batches-bin",
    train: &[
        "data_batch_1.bin",
        "data_batch_2.bin",
        "data_batch_3.bin",
        "data_batch_4.bin",
        "data_batch_5.bin",
    ],
    test: &["test_batch.bin"],
    lists: &["batches.meta.txt"],
    labels: &[Label {
        name: "label",
        classes: 10,
    }],
    mean: [0.4914, 0.4822, 0.4465],
    std: [0.2470, 0.2435, 0.2616],
};

/// One split of CIFAR-10: 32x32 RGB photographs in ten classes.
#[derive(Debug)]
pub struct Cifar10(Cifar);

impl Cifar10 {
    /// The archive with the files of both splits, with its publisher's name.
    pub const FILES: [RemoteFile; 1] = [PUBLISHED.archive];

    /// URLs for the download.
    pub const MIRRORS: [&str; 1] = MIRRORS;

    /// Reads one split from `dir` or its sub-folder `cifar-10-batches-bin`.
    ///
    /// The folder has the archive `cifar-10-binary.tar.gz` or its unpacked files. The first use
    /// unpacks the archive, which takes seconds, into the first writable folder of: `.burn-dist`
    /// beside the archive, `burn-dist` in `$XDG_CACHE_HOME` (or `~/.cache`), one in the folder for
    /// temporary files. Later uses map the unpacked files; all processes share the memory.
    ///
    /// # Errors
    /// [`DatasetError::Missing`] names missing files. Damaged files give
    /// [`Malformed`](DatasetError::Malformed) (an impossible label),
    /// [`Records`](DatasetError::Records) (a truncated file), [`Names`](DatasetError::Names),
    /// [`ArchiveTruncated`](DatasetError::ArchiveTruncated) or
    /// [`ArchiveLacks`](DatasetError::ArchiveLacks); [`Unpacked`](DatasetError::Unpacked) if the
    /// file came from the archive. Also fails if the archive cannot be unpacked anywhere.
    pub fn open(dir: impl AsRef<Path>, split: Split) -> Result<Self, DatasetError> {
        Self::from_places(dir.as_ref(), Unpack::Once(None), split)
    }

    /// Does the same as [`Cifar10::open`], but unpacks an archive only into the folder `cache`.
    ///
    /// # Errors
    /// As [`Cifar10::open`].
    pub fn open_with_cache(
        dir: impl AsRef<Path>,
        split: Split,
        cache: impl AsRef<Path>,
    ) -> Result<Self, DatasetError> {
        let cache = Some(cache.as_ref());
        Self::from_places(dir.as_ref(), Unpack::Once(cache), split)
    }

    /// Does the same as [`Cifar10::open`], but writes nothing.
    ///
    /// Maps the files that an earlier use has unpacked, to `cache` if it is given. Without them, it
    /// unpacks the files of the split into memory.
    ///
    /// # Errors
    /// As [`Cifar10::open`].
    pub fn open_read_only(
        dir: impl AsRef<Path>,
        split: Split,
        cache: Option<&Path>,
    ) -> Result<Self, DatasetError> {
        Self::from_places(dir.as_ref(), Unpack::Memory(cache), split)
    }

    /// Returns the archive if it is missing.
    ///
    /// It is not if `dir` or its sub-folder `cifar-10-batches-bin` has it or all of its files.
    pub fn missing(dir: impl AsRef<Path>) -> Vec<RemoteFile> {
        locate::missing(&PUBLISHED, dir.as_ref())
    }

    downloads!();

    fn from_places(dir: &Path, how: Unpack<'_>, split: Split) -> Result<Self, DatasetError> {
        let label = (0, "batches.meta.txt");
        Cifar::open(&PUBLISHED, (dir, how), split, label).map(Cifar10)
    }
}

delegate_dataset!(Cifar10);
