//! Memory-mapped files: the kernel loads pages as they are touched, and all processes of a node
//! share them.
//!
//! This module has the crate's only unsafe code.

use std::fs::File;
use std::path::Path;

use memmap2::Mmap;

use crate::DatasetError;

/// A whole file, mapped read-only.
#[derive(Debug)]
pub(crate) struct Mapping(Mmap);

impl Mapping {
    /// Maps `path`.
    pub(crate) fn open(path: &Path) -> Result<Self, DatasetError> {
        let file = File::open(path).map_err(DatasetError::io("open", path))?;
        // SAFETY: the bytes must not change while they are mapped. Files of the cache are complete
        // before they get their name, and this crate never writes to them again. At most it
        // replaces them by other files, which leaves the mapped ones as they are. Nobody else has a
        // reason to write to them, or to an unpacked published data set. If somebody does, other
        // pixels are copied out, which is no worse than what they wrote; if they truncate the file,
        // the process ends with SIGBUS. The length is taken once, here.
        let map = unsafe { Mmap::map(&file) }.map_err(DatasetError::io("map into memory", path))?;
        Ok(Mapping(map))
    }

    /// The content, for copying.
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.0
    }
}
