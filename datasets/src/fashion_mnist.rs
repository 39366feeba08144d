//! Fashion-MNIST: 28x28 grey images of clothes (Xiao, Rasul, Vollgraf 2017,
//! <https://arxiv.org/abs/1708.07747>), in the files and under the file names of MNIST.

use std::path::Path;

use crate::delegate::{delegate_dataset, downloads};
use crate::download::{Downloader, Form, RemoteFile};
use crate::idx_set::{IdxSet, Published};
use crate::{DatasetError, Split};

pub(crate) const PUBLISHED: Published = Published {
    name: "Fashion-MNIST",
    sub_folder: "FashionMNIST/raw",
    form: Form::Stored,
    sha256: [
        "3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84",
        "a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845",
        "346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073",
        "67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5",
    ],
    lens: [26_421_880, 29_515, 4_422_102, 5_148],
    mirrors: [
        "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
        "https://github.com/zalandoresearch/fashion-mnist/raw/master/data/fashion/",
    ],
    class_names: [
        "T-shirt/top",
        "Trouser",
        "Pullover",
        "Dress",
        "Coat",
        "Sandal",
        "Shirt",
        "Sneaker",
        "Bag",
        "Ankle boot",
    ],
    mean: 0.2860,
    std: 0.3530,
};

/// One split of Fashion-MNIST, held in memory as bytes.
#[derive(Debug)]
pub struct FashionMnist(IdxSet);

impl FashionMnist {
    /// The files of both splits, with their publishers' names.
    pub const FILES: [RemoteFile; 4] = PUBLISHED.files();

    /// URLs for the download, in the order in which they are tried.
    pub const MIRRORS: [&str; 2] = PUBLISHED.mirrors;

    /// Reads one split from IDX files, gzip-compressed or plain.
    ///
    /// They are in the sub-folder `FashionMNIST/raw` of `dir` (torchvision's layout) or in `dir`
    /// itself.
    ///
    /// # Errors
    /// [`DatasetError::Missing`] names missing files. [`DatasetError::Impostor`] means that the
    /// files belong to another set with the same file names. Other variants describe damaged files,
    /// or images and labels that do not match.
    pub fn open(dir: impl AsRef<Path>, split: Split) -> Result<Self, DatasetError> {
        IdxSet::open(&PUBLISHED, dir.as_ref(), split).map(FashionMnist)
    }

    /// The files of both splits that are missing in `dir` and its sub-folder `FashionMNIST/raw`.
    pub fn missing(dir: impl AsRef<Path>) -> Vec<RemoteFile> {
        PUBLISHED.missing(dir.as_ref())
    }

    downloads!();
}

delegate_dataset!(FashionMnist);
