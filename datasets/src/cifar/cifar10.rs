//! CIFAR-10: ten classes, one label byte, the training images in five files.

use std::path::Path;

use super::{Cifar, Label, MAX_NAMES, MAX_RECORDS, MIRRORS, Published, locate};
use crate::delegate::delegate_dataset;
use crate::download::{Downloader, Form, RemoteFile};
use crate::unpack::{Contents, Member};
use crate::{DatasetError, Split};

const PUBLISHED: Published = Published {
    name: "CIFAR-10",
    archive: RemoteFile {
        name: "cifar-10-binary.tar.gz",
        form: Form::Stored,
        sha256: "c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd",
        len: 170_052_171,
    },
    contents: Contents {
        folder: "cifar-10-batches-bin",
        files: &[
            Member {
                name: "data_batch_1.bin",
                max_len: MAX_RECORDS,
            },
            Member {
                name: "data_batch_2.bin",
                max_len: MAX_RECORDS,
            },
            Member {
                name: "data_batch_3.bin",
                max_len: MAX_RECORDS,
            },
            Member {
                name: "data_batch_4.bin",
                max_len: MAX_RECORDS,
            },
            Member {
                name: "data_batch_5.bin",
                max_len: MAX_RECORDS,
            },
            Member {
                name: "test_batch.bin",
                max_len: MAX_RECORDS,
            },
            Member {
                name: "batches.meta.txt",
                max_len: MAX_NAMES,
            },
        ],
    },
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

/// One split of CIFAR-10: 32x32 RGB photographs of ten kinds of things.
#[derive(Debug)]
pub struct Cifar10(Cifar);

impl Cifar10 {
    /// The archive that has the files of both splits, as its publisher names it.
    pub const FILES: [RemoteFile; 1] = [PUBLISHED.archive];

    /// Where it can be downloaded from.
    pub const MIRRORS: [&str; 1] = MIRRORS;

    /// Reads one split from `dir` or its sub-folder `cifar-10-batches-bin`, in which either the
    /// archive `cifar-10-binary.tar.gz` lies or its unpacked files.
    ///
    /// The archive is unpacked on its first use, which takes seconds, into the first of these
    /// folders that can be written to: `.burn-dist` beside the archive, `burn-dist` in
    /// `$XDG_CACHE_HOME` (or `~/.cache`), one in the folder for temporary files. All further uses
    /// map the unpacked files, also those of other processes, which share the memory.
    ///
    /// # Errors
    /// [`DatasetError::Missing`] names what is not there; other variants say in which way the
    /// archive or a file is damaged ([`Malformed`](DatasetError::Malformed) for an impossible
    /// label, [`Records`](DatasetError::Records) for a file that is cut,
    /// [`Names`](DatasetError::Names), [`ArchiveTruncated`](DatasetError::ArchiveTruncated),
    /// [`ArchiveLacks`](DatasetError::ArchiveLacks); [`Unpacked`](DatasetError::Unpacked) where the
    /// file is one that was unpacked), or that it cannot be unpacked anywhere.
    pub fn open(dir: impl AsRef<Path>, split: Split) -> Result<Self, DatasetError> {
        Self::from_places(dir.as_ref(), None, split)
    }

    /// As [`Cifar10::open`], but an archive is unpacked into the folder `cache` and nowhere else.
    ///
    /// # Errors
    /// As [`Cifar10::open`].
    pub fn open_with_cache(
        dir: impl AsRef<Path>,
        split: Split,
        cache: impl AsRef<Path>,
    ) -> Result<Self, DatasetError> {
        Self::from_places(dir.as_ref(), Some(cache.as_ref()), split)
    }

    /// The archive, unless `dir` or its sub-folder `cifar-10-batches-bin` has it, or all of its
    /// files.
    pub fn missing(dir: impl AsRef<Path>) -> Vec<RemoteFile> {
        locate::missing(&PUBLISHED, dir.as_ref())
    }

    /// Downloads from [`Cifar10::MIRRORS`] into `dir` what is [missing](Cifar10::missing) there.
    ///
    /// Only one process of a node should call this, and the others wait for it.
    ///
    /// # Errors
    /// [`DatasetError::Download`] when no mirror gives the archive, [`DatasetError::Io`] when it
    /// cannot be written.
    pub fn download(dir: impl AsRef<Path>) -> Result<(), DatasetError> {
        Self::download_with(&Downloader::new(Self::MIRRORS), dir)
    }

    /// As [`Cifar10::download`], with other mirrors or time-outs.
    ///
    /// # Errors
    /// As [`Cifar10::download`].
    pub fn download_with(
        downloader: &Downloader,
        dir: impl AsRef<Path>,
    ) -> Result<(), DatasetError> {
        downloader.fetch(&Self::missing(&dir), dir.as_ref())
    }

    fn from_places(dir: &Path, cache: Option<&Path>, split: Split) -> Result<Self, DatasetError> {
        let label = (0, "batches.meta.txt");
        Cifar::open(&PUBLISHED, (dir, cache), split, label).map(Cifar10)
    }
}

delegate_dataset!(Cifar10);
