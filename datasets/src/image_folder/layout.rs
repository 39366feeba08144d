//! Which folder holds the classes of a split.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};

use crate::{DatasetError, Split};

/// Where the images of a split are.
#[derive(Debug)]
pub(super) struct Layout {
    /// The folder of class folders.
    pub(super) folder: PathBuf,
    /// Their names, sorted.
    pub(super) classes: Vec<OsString>,
}

impl Layout {
    /// Looks at the folders in `root`; with `divided`, a part of the training images is kept for
    /// evaluation.
    pub(super) fn of(root: &Path, split: Split, divided: bool) -> Result<Self, DatasetError> {
        let refuse = |folder: &Path, reason: &str| {
            Err(DatasetError::Layout {
                root: folder.to_owned(),
                reason: reason.into(),
            })
        };
        let train = root.join("train");
        // A folder `train` without folders in it is a class.
        let parts = train.is_dir() && !sub_folders(&train)?.is_empty();
        let (train, test) = match parts {
            true => (train, evaluation_folder(root)),
            false => (root.to_owned(), None),
        };
        let classes = sub_folders(&train)?;
        if classes.is_empty() {
            return refuse(
                &train,
                "there is no class folder in it. Put the images of each class into a folder of \
                 its own",
            );
        }
        match (split, test) {
            (_, Some(test)) if divided => refuse(
                &test,
                "there are images for evaluation, and a part of the training images is to be kept \
                 for it as well. Remove the folder or the setting",
            ),
            (Split::Test, None) if !divided => refuse(
                root,
                "there are no images for evaluation: neither a folder val (or test) beside a \
                 folder train, nor a part of the training images that is kept for validation",
            ),
            (_, None) => Ok(Layout {
                folder: train,
                classes,
            }),
            (split, Some(test)) => {
                compare(&train, &classes, &test)?;
                let folder = match split {
                    Split::Train => train,
                    Split::Test => test,
                };
                Ok(Layout { folder, classes })
            }
        }
    }
}

/// `val` goes first: where there are both, as in ImageNet, `test` has no labels.
fn evaluation_folder(root: &Path) -> Option<PathBuf> {
    ["val", "test"]
        .iter()
        .map(|name| root.join(name))
        .find(|folder| folder.is_dir())
}

/// Names of the visible folders in `folder`, sorted.
fn sub_folders(folder: &Path) -> Result<Vec<OsString>, DatasetError> {
    let list = DatasetError::io;
    let mut names = Vec::new();
    for entry in fs::read_dir(folder).map_err(list("list", folder))? {
        let entry = entry.map_err(list("list", folder))?;
        let name = entry.file_name();
        if !super::scan::is_hidden(&name) && entry.path().is_dir() {
            names.push(name);
        }
    }
    names.sort();
    Ok(names)
}

/// Refuses two parts with different classes: their labels would mean different things.
fn compare(train: &Path, classes: &[OsString], test: &Path) -> Result<(), DatasetError> {
    let others = sub_folders(test)?;
    if classes == others {
        return Ok(());
    }
    let only = |of: &[OsString], not: &[OsString]| {
        let missing = of.iter().filter(|name| not.binary_search(name).is_err());
        missing
            .map(|name| name.to_string_lossy().into_owned())
            .collect()
    };
    Err(DatasetError::Classes {
        train: train.to_owned(),
        only_train: only(classes, &others),
        test: test.to_owned(),
        only_test: only(&others, classes),
    })
}
