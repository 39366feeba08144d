//! CIFAR-100: a hundred classes in twenty superclasses, with a label byte for each.

use std::path::Path;

use super::locate::{self, Unpack};
use super::{Cifar, Label, MIRRORS, Published};
use crate::delegate::{delegate_dataset, downloads};
use crate::download::{Downloader, Form, RemoteFile};
use crate::{DatasetError, Split};

const PUBLISHED: Published = Published {
    name: "CIFAR-100",
    archive: RemoteFile {
        name: "cifar-100-binary.tar.gz",
        form: Form::Stored,
        sha256: "58a81ae192c23a4be8b1804d68e518ed807d710a4eb253b1f2a199162a40d8ec",
        len: 168_513_733,
    },
    folder: "cifar-100-binary",
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

/// Selects the label of an image.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Cifar100Labels {
    /// One of 100 classes, such as `maple_tree`.
    #[default]
    Fine,
    /// One of 20 superclasses, such as `trees`.
    Coarse,
}

/// One split of CIFAR-100: 32x32 RGB photographs in a hundred classes.
#[derive(Debug)]
pub struct Cifar100(Cifar);

impl Cifar100 {
    /// The archive with the files of both splits, with its publisher's name.
    pub const FILES: [RemoteFile; 1] = [PUBLISHED.archive];

    /// URLs for the download.
    pub const MIRRORS: [&str; 1] = MIRRORS;

    /// Reads one split from `dir` or its sub-folder `cifar-100-binary`.
    ///
    /// The folder has the archive `cifar-100-binary.tar.gz` or its unpacked files. The first use
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
    pub fn open(
        dir: impl AsRef<Path>,
        split: Split,
        labels: Cifar100Labels,
    ) -> Result<Self, DatasetError> {
        Self::from_places(dir.as_ref(), Unpack::Once(None), split, labels)
    }

    /// Does the same as [`Cifar100::open`], but unpacks an archive only into the folder `cache`.
    ///
    /// # Errors
    /// As [`Cifar100::open`].
    pub fn open_with_cache(
        dir: impl AsRef<Path>,
        split: Split,
        labels: Cifar100Labels,
        cache: impl AsRef<Path>,
    ) -> Result<Self, DatasetError> {
        let cache = Some(cache.as_ref());
        Self::from_places(dir.as_ref(), Unpack::Once(cache), split, labels)
    }

    /// Does the same as [`Cifar100::open`], but writes nothing.
    ///
    /// Maps the files that an earlier use has unpacked, to `cache` if it is given. Without them, it
    /// unpacks the files of the split into memory.
    ///
    /// # Errors
    /// As [`Cifar100::open`].
    pub fn open_read_only(
        dir: impl AsRef<Path>,
        split: Split,
        labels: Cifar100Labels,
        cache: Option<&Path>,
    ) -> Result<Self, DatasetError> {
        Self::from_places(dir.as_ref(), Unpack::Memory(cache), split, labels)
    }

    /// The archive, unless `dir` or its sub-folder `cifar-100-binary` has it or all of its files.
    pub fn missing(dir: impl AsRef<Path>) -> Vec<RemoteFile> {
        locate::missing(&PUBLISHED, dir.as_ref())
    }

    downloads!();

    fn from_places(
        dir: &Path,
        how: Unpack<'_>,
        split: Split,
        labels: Cifar100Labels,
    ) -> Result<Self, DatasetError> {
        let label = match labels {
            Cifar100Labels::Coarse => (0, "coarse_label_names.txt"),
            Cifar100Labels::Fine => (1, "fine_label_names.txt"),
        };
        Cifar::open(&PUBLISHED, (dir, how), split, label).map(Cifar100)
    }
}

delegate_dataset!(Cifar100);
