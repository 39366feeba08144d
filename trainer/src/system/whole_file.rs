//! Files that are whole or not there: readers, and a run that goes on, never find half of one.

use std::io::{self, Read, Write};
use std::path::Path;

use burn_dist::files::{Replacement, open_file};

/// The folder that a file at `path` lies in.
pub(crate) fn folder_of(path: &Path) -> &Path {
    let folder = path
        .parent()
        .filter(|folder| !folder.as_os_str().is_empty());
    folder.unwrap_or(Path::new("."))
}

/// Reads a file of a run folder.
///
/// # Errors
/// If the system refuses, or it is not a regular file.
pub(crate) fn read(path: &Path) -> io::Result<Vec<u8>> {
    let mut content = Vec::new();
    open_file(path)?.read_to_end(&mut content)?;
    Ok(content)
}

/// The same of a text.
///
/// # Errors
/// As [`read`], and if it is not UTF-8.
pub(crate) fn read_text(path: &Path) -> io::Result<String> {
    let mut text = String::new();
    open_file(path)?.read_to_string(&mut text)?;
    Ok(text)
}

/// Puts a file with this content in the place of what lies at `path`, with the permissions of any
/// other file, less the process's mask, or with those of `mode`. A process that is killed leaves
/// nothing else behind.
///
/// # Errors
/// If the system refuses; what lies there is as it was.
pub(crate) fn replace(path: &Path, content: &[u8], mode: Option<u32>) -> io::Result<()> {
    begun(path, content, mode)?.publish_cached()
}

/// The same, and waits until the file and its name are on disk.
///
/// # Errors
/// As [`replace`], and if the disk has something else then.
pub(crate) fn replace_on_disk(path: &Path, content: &[u8]) -> io::Result<()> {
    begun(path, content, None)?.publish().map(drop)
}

fn begun(path: &Path, content: &[u8], mode: Option<u32>) -> io::Result<Replacement> {
    let mut file = Replacement::create(path, mode)?;
    file.write_all(content)?;
    Ok(file)
}
