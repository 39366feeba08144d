//! Checksums of the data files of a run.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::config::DataConfig;

/// Largest data whose content is read, in bytes. Larger data is known by names and sizes.
const CONTENT: u64 = 512 << 20;
/// Most files that are listed one by one.
const LISTED: usize = 64;
/// Maximum depth of folders.
const DEPTH: usize = 16;

/// Checksum of the data in a file or folder.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct DataChecksum {
    /// Absolute path.
    pub path: String,
    /// Number of files.
    pub files: usize,
    /// Their size in bytes.
    pub bytes: u64,
    /// `content`, or `names and sizes` for data of more than 512 MiB: the input of the checksum.
    pub of: String,
    /// SHA-256 of a list with one line per file, sorted by name: the SHA-256 or the size of the
    /// file, two spaces, its path in the folder.
    pub sha256: String,
    /// SHA-256 of each file, if they are few.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub each: BTreeMap<String, String>,
}

/// Checksums of the configured data files. Empty for generated data.
///
/// # Errors
/// Fails if a file cannot be read.
pub(crate) fn of(config: &DataConfig) -> io::Result<Vec<DataChecksum>> {
    let mut kind = config.kind.clone();
    let given = kind.paths().into_iter();
    let mut paths: Vec<PathBuf> = given.filter_map(|(_, path)| path.clone()).collect();
    let folder = config.kind.folder();
    if paths.is_empty() && !folder.as_os_str().is_empty() {
        paths.push(folder.to_owned());
    }
    paths.iter().map(|path| of_path(path)).collect()
}

fn of_path(path: &Path) -> io::Result<DataChecksum> {
    let mut files = BTreeMap::new();
    list(path, String::new(), 0, &mut files)?;
    let bytes = files.values().map(|(_, size)| size).sum();
    let reads = bytes <= CONTENT;
    let mut lines = Sha256::new();
    let mut each = BTreeMap::new();
    for (name, (file, size)) in &files {
        let known = match reads {
            true => content(file)?,
            false => size.to_string(),
        };
        lines.update(format!("{known}  {name}\n"));
        if reads && files.len() <= LISTED {
            each.insert(name.clone(), known);
        }
    }
    Ok(DataChecksum {
        path: std::path::absolute(path)?.display().to_string(),
        files: files.len(),
        bytes,
        of: if reads { "content" } else { "names and sizes" }.to_owned(),
        sha256: hex(lines),
        each,
    })
}

/// Adds the files at `path` with their sizes, by their names below the first folder. Hidden files
/// are no data.
fn list(
    path: &Path,
    name: String,
    depth: usize,
    files: &mut BTreeMap<String, (PathBuf, u64)>,
) -> io::Result<()> {
    let found = fs::metadata(path)?;
    // Reading a pipe or a device may wait for ever.
    if !found.is_dir() && !found.is_file() {
        return Ok(());
    }
    if !found.is_dir() {
        let own = || path.file_name().unwrap_or_default().to_string_lossy();
        let name = if name.is_empty() {
            own().into_owned()
        } else {
            name
        };
        files.insert(name, (path.to_owned(), found.len()));
        return Ok(());
    }
    if depth > DEPTH {
        return Ok(());
    }
    for entry in fs::read_dir(path)? {
        let entry = entry?;
        let own = entry.file_name();
        let own = own.to_string_lossy();
        if own.starts_with('.') {
            continue;
        }
        let name = match name.as_str() {
            "" => own.into_owned(),
            folder => format!("{folder}/{own}"),
        };
        list(&entry.path(), name, depth + 1, files)?;
    }
    Ok(())
}

fn content(file: &Path) -> io::Result<String> {
    let mut hasher = Sha256::new();
    io::copy(&mut File::open(file)?, &mut hasher)?;
    Ok(hex(hasher))
}

fn hex(hasher: Sha256) -> String {
    let digest = hasher.finalize();
    digest.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The checksums are those of `sha256sum`.
    #[test]
    fn files_are_known_by_their_content() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        fs::create_dir(path("sub")).unwrap();
        fs::write(path("sub/a"), "abc").unwrap();
        fs::write(path("b"), "").unwrap();
        fs::write(path(".lock"), "hidden").unwrap();
        let sum = of_path(folder.path()).unwrap();
        assert_eq!((sum.files, sum.bytes, sum.of.as_str()), (2, 3, "content"));
        let abc = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
        assert_eq!(sum.each["sub/a"], abc);
        let none = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";
        let mut lines = Sha256::new();
        lines.update(format!("{none}  b\n{abc}  sub/a\n"));
        assert_eq!(sum.sha256, hex(lines));
        assert_eq!(of_path(&path("sub/a")).unwrap().each["a"], abc);
        assert!(of_path(&path("none")).is_err());
        fs::write(path("b"), "x").unwrap();
        assert_ne!(of_path(folder.path()).unwrap().sha256, sum.sha256);
    }
}
