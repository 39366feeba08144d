//! Unpacks archives to plain files in a cache, once.
//!
//! A compressed archive can only be read from its start. So the first process that opens it
//! [unpacks](archive) the needed files into a [cache] folder; all others, and all later runs, map
//! the plain files into memory.

mod archive;
mod cache;

use std::path::Path;

use crate::DatasetError;
use archive::Target;
pub(crate) use cache::{unpacked, unpacked_before};

/// Unpacks the files of `contents` into memory, in their order. Writes nothing.
pub(crate) fn into_memory(
    archive: &Path,
    contents: &Contents,
) -> Result<Vec<Vec<u8>>, DatasetError> {
    let files = archive::unpack(archive, contents, Target::Memory)?;
    Ok(files.into_iter().map(|file| file.bytes).collect())
}

/// The files to take out of an archive.
#[derive(Debug)]
pub(crate) struct Contents<'a> {
    /// The folder in the archive with the files, and the beginning of the cache's name.
    pub(crate) folder: &'static str,
    /// The files.
    pub(crate) files: &'a [Member],
}

/// One file in an archive.
#[derive(Debug)]
pub(crate) struct Member {
    /// Its name in the folder.
    pub(crate) name: &'static str,
    /// Largest number of bytes.
    pub(crate) max_len: u64,
}
