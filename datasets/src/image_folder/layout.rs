//! Finds the folder with the classes of a split.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use super::ImageFolderOptions;
use crate::{DatasetError, Split};

/// Place of the images of a split.
#[derive(Debug)]
pub(super) struct Layout {
    /// The folder of class folders.
    pub(super) folder: PathBuf,
    /// Names of the class folders, sorted.
    pub(super) classes: Vec<OsString>,
    /// Folders in it that are not classes, recognised by their names.
    pub(super) foreign: Vec<PathBuf>,
}

impl Layout {
    /// Reads the folders in `root`.
    pub(super) fn of(
        root: &Path,
        split: Split,
        options: &ImageFolderOptions,
    ) -> Result<Self, DatasetError> {
        let divided = options.validation.is_some();
        verify_root(root)?;
        let train = root.join("train");
        // A folder `train` without folders in it is a class.
        let parts = train.is_dir() && !sub_folders(&train)?.is_empty();
        let (train, test) = match parts {
            true => (train, Evaluation::beside_train(root, options.prefers_test)?),
            false => (root.to_owned(), Evaluation::Nowhere),
        };
        let classes = sub_folders(&train)?;
        if classes.is_empty() {
            return refuse(
                &train,
                "it contains no class folders. Put the images of each class into a folder of their \
                 own",
            );
        }
        let test = match test {
            // An unused part may have any layout.
            Evaluation::Nowhere | Evaluation::WithoutClasses(_)
                if divided || split == Split::Train =>
            {
                None
            }
            // It is for the test of the finished model.
            Evaluation::In(test) if divided && test.ends_with(TEST) => None,
            Evaluation::Nowhere => return refuse(root, NOWHERE),
            Evaluation::WithoutClasses(test) => return refuse(&test, WITHOUT_CLASSES),
            Evaluation::In(test) if divided => return refuse(&test, TWICE),
            Evaluation::In(test) => Some(test),
        };
        if let Some(test) = &test {
            compare(&train, &classes, test)?;
        }
        let folder = match (split, test) {
            (Split::Test, Some(test)) => test,
            _ => train,
        };
        let foreign = list(&folder, super::scan::is_foreign)?;
        let foreign = foreign.iter().map(|name| folder.join(name)).collect();
        Ok(Layout {
            folder,
            classes,
            foreign,
        })
    }
}

/// Explains the expected layout if the folder does not exist.
fn verify_root(root: &Path) -> Result<(), DatasetError> {
    match fs::metadata(root) {
        Ok(metadata) if metadata.is_dir() => Ok(()),
        Err(error) if error.kind() != ErrorKind::NotFound => {
            Err(DatasetError::io("open", root)(error))
        }
        _ => refuse(root, NO_FOLDER),
    }
}

fn refuse<T>(folder: &Path, reason: impl Into<String>) -> Result<T, DatasetError> {
    Err(DatasetError::Layout {
        root: folder.to_owned(),
        reason: reason.into(),
    })
}

const NO_FOLDER: &str = "the folder does not exist. Set data.dir to a folder with one subfolder of images per class, \
     or with subfolders train and val of this form";
/// Folders of images for evaluation, beside a folder `train`.
const VALIDATION: [&str; 3] = ["val", "valid", "validation"];
/// Used if none of these exists.
const TEST: &str = "test";

const NOWHERE: &str = "there are no validation images. Add a folder val, valid, validation or test beside train, or \
     set data.validation, for example to 0.1";
const TWICE: &str = "there are validation images, and data.validation also takes some from the training images. \
     Remove the folder or the setting";
const WITHOUT_CLASSES: &str = "it contains no class folders, so its images have no labels. Put the images of each class into \
     a folder of their own as in train (here, or in a folder val, which is preferred to test), or \
     set data.validation, for example to 0.1";

/// Whether `root` has folders of validation and of test images with classes, beside `train`.
pub(super) fn evaluation_folders(root: &Path) -> [bool; 2] {
    let has_classes = |name: &str| {
        let folders = sub_folders(&root.join(name));
        folders.is_ok_and(|folders| !folders.is_empty())
    };
    let is_there = |names: &[&str]| names.iter().any(|name| has_classes(name));
    match has_classes("train") {
        true => [is_there(&VALIDATION), is_there(&[TEST])],
        false => [false; 2],
    }
}

/// Place of the images for evaluation.
enum Evaluation {
    Nowhere,
    /// In a folder of class folders.
    In(PathBuf),
    /// In a folder without class folders, such as ImageNet's `test`, which has no labels.
    WithoutClasses(PathBuf),
}

impl Evaluation {
    /// Looks beside the folder `train` in `root`.
    fn beside_train(root: &Path, prefers_test: bool) -> Result<Self, DatasetError> {
        let is_there = |name: &&str| root.join(name).is_dir();
        let found: Vec<&str> = VALIDATION.into_iter().filter(is_there).collect();
        let name = match found.as_slice() {
            _ if prefers_test && is_there(&TEST) => TEST,
            [] if !is_there(&TEST) => return Ok(Evaluation::Nowhere),
            [] => TEST,
            [name] => name,
            several => {
                let reason = format!(
                    "several folders may contain the validation images: {}. Keep one, or rename \
                     the others",
                    several.join(", ")
                );
                return refuse(root, reason);
            }
        };
        let folder = root.join(name);
        Ok(match sub_folders(&folder)?.is_empty() {
            true => Evaluation::WithoutClasses(folder),
            false => Evaluation::In(folder),
        })
    }
}

/// Names of the visible folders in `folder` that may be classes, sorted.
fn sub_folders(folder: &Path) -> Result<Vec<OsString>, DatasetError> {
    list(folder, |name| {
        !super::scan::is_hidden(name) && !super::scan::is_foreign(name)
    })
}

/// Names of the folders in `folder` that are `wanted`, sorted.
fn list(folder: &Path, wanted: impl Fn(&OsStr) -> bool) -> Result<Vec<OsString>, DatasetError> {
    let failed = || DatasetError::io("list", folder);
    let mut names = Vec::new();
    for entry in fs::read_dir(folder).map_err(failed())? {
        let entry = entry.map_err(failed())?;
        let name = entry.file_name();
        if wanted(&name) && entry.path().is_dir() {
            names.push(name);
        }
    }
    names.sort();
    Ok(names)
}

/// Refuses two parts with different classes: their labels would have different meanings.
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
