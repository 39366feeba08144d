//! Atomic files: readers, and a resumed run, never find half of one.

use std::io::{self, Read, Write};
use std::path::Path;

use burn_dist::files::{Replacement, open_file};

/// The folder of the file at `path`.
pub(crate) fn folder_of(path: &Path) -> &Path {
    let folder = path
        .parent()
        .filter(|folder| !folder.as_os_str().is_empty());
    folder.unwrap_or(Path::new("."))
}

/// Reads a file of a run folder.
///
/// # Errors
/// Fails if the system refuses, or if it is not a regular file.
pub(crate) fn read(path: &Path) -> io::Result<Vec<u8>> {
    let mut content = Vec::new();
    open_file(path)?.read_to_end(&mut content)?;
    Ok(content)
}

/// Reads a text file like [`read`].
///
/// # Errors
/// As [`read`]. Also fails if the text is not UTF-8.
pub(crate) fn read_text(path: &Path) -> io::Result<String> {
    let mut text = String::new();
    open_file(path)?.read_to_string(&mut text)?;
    Ok(text)
}

/// Replaces the file at `path` by one with this content. A killed process leaves no partial file.
///
/// The permissions are `mode`, or the default of a file under the process's mask.
///
/// # Errors
/// Fails if the system refuses; the old file then stays.
pub(crate) fn replace(path: &Path, content: &[u8], mode: Option<u32>) -> io::Result<()> {
    begun(path, content, mode)?.publish_cached()
}

/// Replaces like [`replace`], and waits until the file and its name are on disk.
///
/// # Errors
/// As [`replace`]. Also fails if the file on disk differs afterwards.
pub(crate) fn replace_on_disk(path: &Path, content: &[u8]) -> io::Result<()> {
    begun(path, content, None)?.publish().map(drop)
}

fn begun(path: &Path, content: &[u8], mode: Option<u32>) -> io::Result<Replacement> {
    let mut file = Replacement::create(path, mode)?;
    file.write_all(content)?;
    Ok(file)
}
