//! Archives become plain files in a cache, once.
//!
//! A compressed archive can only be read from its start, so the first process that opens it
//! [unpacks](archive) what is needed into a [cache] folder; all others, and all later runs, map
//! the plain files into memory.

mod archive;
mod cache;

pub(crate) use cache::unpacked;

/// What is taken out of an archive.
#[derive(Debug)]
pub(crate) struct Contents {
    /// The folder in the archive that holds the files, and the beginning of the cache's name.
    pub(crate) folder: &'static str,
    /// The files.
    pub(crate) files: &'static [Member],
}

/// One file in an archive.
#[derive(Debug)]
pub(crate) struct Member {
    /// Its name in the folder.
    pub(crate) name: &'static str,
    /// More bytes than these are refused.
    pub(crate) max_len: u64,
}
