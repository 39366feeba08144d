//! CIFAR-100: a hundred classes in twenty superclasses, a label byte for each.

use std::path::Path;

use super::{Cifar, Label, MIRRORS, Published, list_of_names, locate, records_file};
use crate::delegate::{delegate_dataset, downloads};
use crate::download::{Downloader, Form, RemoteFile};
use crate::unpack::Contents;
use crate::{DatasetError, Split};

const PUBLISHED: Published = Published {
    name: "CIFAR-100",
    archive: RemoteFile {
        name: "cifar-100-binary.tar.gz",
        form: Form::Stored,
        sha256: "58a81ae192c23a4be8b1804d68e518ed807d710a4eb253b1f2a199162a40d8ec",
        len: 168_513_733,
    },
    contents: Contents {
        folder: "cifar-100-binary",
        files: &[
            records_file("train.bin"),
            records_file("test.bin"),
            list_of_names("fine_label_names.txt"),
            list_of_names("coarse_label_names.txt"),
        ],
    },
    train: &["train.bin"],
    test: &["test.bin"],
    lists: &["fine_label_names.txt", "coarse_label_names.txt"],
    labels: &[
        Label {
            name: "coarse label",
            classes: 20,
        },
        Label {
            name: "fine label",
            classes: 100,
        },
    ],
    mean: [0.5071, 0.4865, 0.4409],
    std: [0.2673, 0.2564, 0.2762],
};

/// Which of the two labels of an image is its class.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Cifar100Labels {
    /// One of 100 classes, such as `maple_tree`.
    #[default]
    Fine,
    /// One of 20 superclasses, such as `trees`.
    Coarse,
}

/// One split of CIFAR-100: 32x32 RGB photographs of a hundred kinds of things.
#[derive(Debug)]
pub struct Cifar100(Cifar);

impl Cifar100 {
    /// The archive that has the files of both splits, as its publisher names it.
    pub const FILES: [RemoteFile; 1] = [PUBLISHED.archive];

    /// Where it can be downloaded from.
    pub const MIRRORS: [&str; 1] = MIRRORS;

    /// Reads one split from `dir` or its sub-folder `cifar-100-binary`, in which either the archive
    /// `cifar-100-binary.tar.gz` lies or its unpacked files.
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
    pub fn open(
        dir: impl AsRef<Path>,
        split: Split,
        labels: Cifar100Labels,
    ) -> Result<Self, DatasetError> {
        Self::from_places(dir.as_ref(), None, split, labels)
    }

    /// As [`Cifar100::open`], but an archive is unpacked into the folder `cache` and nowhere else.
    ///
    /// # Errors
    /// As [`Cifar100::open`].
    pub fn open_with_cache(
        dir: impl AsRef<Path>,
        split: Split,
        labels: Cifar100Labels,
        cache: impl AsRef<Path>,
    ) -> Result<Self, DatasetError> {
        Self::from_places(dir.as_ref(), Some(cache.as_ref()), split, labels)
    }

    /// The archive, unless `dir` or its sub-folder `cifar-100-binary` has it, or all of its files.
    pub fn missing(dir: impl AsRef<Path>) -> Vec<RemoteFile> {
        locate::missing(&PUBLISHED, dir.as_ref())
    }

    downloads!();

    fn from_places(
        dir: &Path,
        cache: Option<&Path>,
        split: Split,
        labels: Cifar100Labels,
    ) -> Result<Self, DatasetError> {
        let label = match labels {
            Cifar100Labels::Coarse => (0, "coarse_label_names.txt"),
            Cifar100Labels::Fine => (1, "fine_label_names.txt"),
        };
        Cifar::open(&PUBLISHED, (dir, cache), split, label).map(Cifar100)
    }
}

delegate_dataset!(Cifar100);
