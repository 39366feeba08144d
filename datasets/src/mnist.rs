//! MNIST: 28x28 grey images of handwritten digits (LeCun, Cortes, Burges).

use std::path::Path;

use crate::delegate::{delegate_dataset, downloads};
use crate::download::{Downloader, Form, RemoteFile};
use crate::idx_set::{IdxSet, Published};
use crate::{DatasetError, Split};

pub(crate) const PUBLISHED: Published = Published {
    name: "MNIST",
    sub_folder: "MNIST/raw",
    form: Form::Uncompressed,
    sha256: [
        "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
        "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
        "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
        "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
    ],
    lens: [47_040_016, 60_008, 7_840_016, 10_008],
    mirrors: [
        "https://ossci-datasets.s3.amazonaws.com/mnist/",
        "https://storage.googleapis.com/cvdf-datasets/mnist/",
    ],
    class_names: ["0", "1", "2", "3", "4", "5", "6", "7", "8", "9"],
    mean: 0.1307,
    std: 0.3081,
};

/// One split of MNIST, held in memory as bytes.
#[derive(Debug)]
pub struct Mnist(IdxSet);

impl Mnist {
    /// The files of both splits, with their publishers' names.
    pub const FILES: [RemoteFile; 4] = PUBLISHED.files();

    /// URLs for the download, in the order in which they are tried.
    pub const MIRRORS: [&str; 2] = PUBLISHED.mirrors;

    /// Reads one split from IDX files, gzip-compressed or plain.
    ///
    /// They are in the sub-folder `MNIST/raw` of `dir` (torchvision's layout) or in `dir` itself.
    ///
    /// # Errors
    /// [`DatasetError::Missing`] names missing files. [`DatasetError::Impostor`] means that the
    /// files belong to another set with the same file names. Other variants describe damaged files,
    /// or images and labels that do not match.
    pub fn open(dir: impl AsRef<Path>, split: Split) -> Result<Self, DatasetError> {
        IdxSet::open(&PUBLISHED, dir.as_ref(), split).map(Mnist)
    }

    /// The files of both splits that are missing in `dir` and its sub-folder `MNIST/raw`.
    pub fn missing(dir: impl AsRef<Path>) -> Vec<RemoteFile> {
        PUBLISHED.missing(dir.as_ref())
    }

    downloads!();
}

delegate_dataset!(Mnist);
