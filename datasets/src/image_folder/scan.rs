//! Lists the images below a folder.

use std::collections::HashSet;
use std::ffi::OsStr;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// Whether a name is hidden: it starts with a dot.
pub(super) fn is_hidden(name: &OsStr) -> bool {
    name.as_encoded_bytes().starts_with(b".")
}

/// Folders that systems and programs create: zip files from a Mac, a file system, notebooks, a
/// network storage, Windows.
const FOREIGN: [&str; 6] = [
    "__MACOSX",
    "lost+found",
    ".ipynb_checkpoints",
    "@eaDir",
    "$RECYCLE.BIN",
    "System Volume Information",
];

/// Whether a folder of this name holds no images of the data set.
pub(super) fn is_foreign(name: &OsStr) -> bool {
    FOREIGN.iter().any(|foreign| name == *foreign)
}

/// Ignored files and folders.
#[derive(Debug, Default)]
pub(super) struct PassedOver {
    /// Files without an image's extension.
    pub(super) files: Vec<PathBuf>,
    /// Folders without images of the data set, recognised by their names.
    pub(super) folders: Vec<PathBuf>,
}

/// Extensions of images, in upper or lower case: torchvision's, and those of PNM.
const ENDINGS: [&str; 11] = [
    "jpg", "jpeg", "png", "ppm", "bmp", "pgm", "tif", "tiff", "webp", "pbm", "pnm",
];

fn is_image(path: &Path) -> bool {
    let ending = path.extension().and_then(OsStr::to_str);
    ending.is_some_and(|ending| {
        let mut known = ENDINGS.iter();
        known.any(|known| ending.eq_ignore_ascii_case(known))
    })
}

/// The extensions for messages.
pub(super) fn endings() -> String {
    format!(".{}", ENDINGS.join(", ."))
}

/// All visible images below `top`, recognised by their extensions, sorted by path. Symbolic links
/// are followed. Unusable files are added to `problems`, as is the absence of images if nothing
/// else is wrong. Ignored ones are added to `passed`. `of` completes "there is no image".
///
/// Every folder is visited once, and those around the top never, so links can neither loop nor add
/// the images of other classes.
pub(super) fn files(
    top: &Path,
    of: &str,
    problems: &mut Vec<(PathBuf, String)>,
    passed: &mut PassedOver,
) -> Vec<PathBuf> {
    let (mut files, problems_before) = (Vec::new(), problems.len());
    let others_before = passed.files.len();
    let mut visit = |folder: &Path, pending: &mut Vec<PathBuf>| -> io::Result<()> {
        for entry in fs::read_dir(folder)? {
            let entry = entry?;
            let path = entry.path();
            let name = entry.file_name();
            if is_foreign(&name) && path.is_dir() {
                passed.folders.push(path);
                continue;
            }
            if is_hidden(&name) {
                continue;
            }
            match fs::metadata(&path) {
                Ok(metadata) if metadata.is_dir() => pending.push(path),
                Ok(metadata) if metadata.is_file() && is_image(&path) => files.push(path),
                Ok(metadata) if metadata.is_file() => passed.files.push(path),
                Ok(_) => problems.push((path, "it is neither a file nor a folder".into())),
                Err(error) => problems.push((path, format!("cannot read it ({error})"))),
            }
        }
        Ok(())
    };

    let mut unreadable = Vec::new();
    let real_top = fs::canonicalize(top).unwrap_or_else(|_| top.to_owned());
    let mut visited = HashSet::new();
    let mut pending = vec![top.to_owned()];
    while let Some(folder) = pending.pop() {
        let real = match fs::canonicalize(&folder) {
            Ok(real) => real,
            Err(error) => {
                unreadable.push((folder, format!("cannot read it ({error})")));
                continue;
            }
        };
        let around = real != real_top && real_top.starts_with(&real);
        if around || !visited.insert(real) {
            continue;
        }
        let mut inner = Vec::new();
        if let Err(error) = visit(&folder, &mut inner) {
            unreadable.push((folder, format!("cannot read it ({error})")));
        }
        // The order of the visits decides the path of a linked folder.
        inner.sort_by(|a, b| b.cmp(a));
        pending.append(&mut inner);
    }
    problems.append(&mut unreadable);
    if files.is_empty() && problems.len() == problems_before {
        let mut reason = format!("there is no image{of}");
        if let Some(other) = passed.files.get(others_before) {
            let (other, endings) = (other.display(), endings());
            reason.push_str(&format!(
                ": image names end with one of {endings}, unlike {other}"
            ));
        }
        problems.push((top.to_owned(), reason));
    }
    files.sort();
    files
}
