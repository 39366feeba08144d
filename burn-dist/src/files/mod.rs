//! Files that are complete or absent, and verified against the disk.
//!
//! They are hashed as they are written, and read back past the page cache.

mod hashed;
mod replacement;
mod tensors;

use std::fs::File;
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

#[cfg(test)]
pub(crate) use hashed::tests::{Fault, Faulty};
pub use hashed::{CheckedFile, Content, Disk};
pub use replacement::Replacement;
pub use tensors::write_tensors;

/// Waits until the names in `folder` are on disk.
///
/// A file system that cannot sync a folder, or a folder that may be written but not read, is no
/// error.
///
/// # Errors
/// Fails if the names cannot be written.
pub fn sync_folder(folder: &Path) -> io::Result<()> {
    let folder = match folder.as_os_str().is_empty() {
        true => Path::new("."),
        false => folder,
    };
    #[cfg(test)]
    tests::SYNCED.with_borrow_mut(|synced| synced.push(folder.to_owned()));
    match File::open(folder).and_then(|folder| folder.sync_all()) {
        Err(error) if is_unsupported(&error) => Ok(()),
        result => result,
    }
}

/// Opens a regular file for reading. A pipe, which would block, is an error.
///
/// # Errors
/// Fails if the system refuses, or if it is not a regular file.
pub fn open_file(path: &Path) -> io::Result<File> {
    let flags = rustix::fs::OFlags::NONBLOCK.bits().cast_signed();
    let file = File::options().read(true).custom_flags(flags).open(path)?;
    match file.metadata()?.is_file() {
        true => Ok(file),
        false => Err(io::Error::other("not a regular file")),
    }
}

/// Creates `folder` with its parents, like [`std::fs::create_dir_all`], and syncs the new names.
///
/// # Errors
/// Fails if the system refuses.
pub fn create_folders(folder: &Path) -> io::Result<()> {
    let missing = folder
        .ancestors()
        .take_while(|path| !path.as_os_str().is_empty() && !path.exists());
    let missing: Vec<&Path> = missing.collect();
    std::fs::create_dir_all(folder)?;
    for made in missing {
        sync_folder(made.parent().unwrap_or(Path::new("")))?;
    }
    Ok(())
}

/// Whether a folder cannot be synced, which is acceptable.
fn is_unsupported(error: &io::Error) -> bool {
    use rustix::io::Errno;
    let errno = error.raw_os_error().map(Errno::from_raw_os_error);
    matches!(
        errno,
        Some(Errno::INVAL | Errno::NOSYS | Errno::OPNOTSUPP | Errno::BADF | Errno::ACCESS)
    )
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::path::PathBuf;

    use super::*;

    thread_local! {
        /// Folders that this thread has synced.
        pub static SYNCED: RefCell<Vec<PathBuf>> = const { RefCell::new(Vec::new()) };
    }

    #[test]
    fn every_parent_that_is_made_is_synced() {
        let home = tempfile::tempdir().unwrap();
        create_folders(&home.path().join("a/b/c")).unwrap();
        let synced = SYNCED.take();
        for name in ["a/b", "a", ""] {
            let folder = home.path().join(name);
            assert!(synced.contains(&folder), "{synced:?}");
        }
        create_folders(&home.path().join("a/b/c")).unwrap();
        assert!(SYNCED.take().is_empty());
    }
}
