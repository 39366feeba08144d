//! Files that are whole or not there: readers, and a run that goes on, never find half of one.

use std::fs::Permissions;
use std::io::{self, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

/// The folder that a file at `path` lies in.
pub(crate) fn folder_of(path: &Path) -> &Path {
    let folder = path
        .parent()
        .filter(|folder| !folder.as_os_str().is_empty());
    folder.unwrap_or(Path::new("."))
}

/// Puts a file with this content in the place of what lies at `path`, with the permissions of any other file, less the
/// process's mask, or with those of `mode`.
///
/// # Errors
/// If the system refuses; what lies there is as it was.
pub(crate) fn replace(path: &Path, content: &[u8], mode: Option<u32>) -> io::Result<()> {
    let mut part = tempfile::Builder::new()
        .permissions(Permissions::from_mode(0o666))
        .tempfile_in(folder_of(path))?;
    // Not through `part`, whose errors name a file that nobody knows.
    part.as_file_mut().write_all(content)?;
    if let Some(mode) = mode {
        part.as_file()
            .set_permissions(Permissions::from_mode(mode))?;
    }
    part.persist(path)?;
    Ok(())
}
