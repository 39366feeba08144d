//! Verifies that a downloaded file has the published content.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::path::Path;

use flate2::bufread::MultiGzDecoder;
use sha2::{Digest, Sha256};

use super::{Form, RemoteFile};
use crate::DatasetError;
use crate::hex::hex;
use crate::idx::GZIP_MAGIC;

/// Compares `path` with the published checksum; the inner error describes the difference. Reads no
/// further than the published length.
pub(super) fn check(path: &Path, file: &RemoteFile) -> Result<Result<(), String>, DatasetError> {
    let stored = File::open(path).map_err(DatasetError::io("open", path))?;
    let mut reader = BufReader::with_capacity(1 << 16, stored);
    let start = reader.fill_buf().map_err(DatasetError::io("read", path))?;
    let packed = file.form == Form::Uncompressed && start.starts_with(&GZIP_MAGIC);
    let hashed = if packed {
        hash(MultiGzDecoder::new(reader), file.len)
    } else {
        hash(reader, file.len)
    };
    let form = match file.form {
        Form::Uncompressed => " (uncompressed)",
        Form::Stored => "",
    };
    Ok(match hashed {
        Err(error) => Err(format!("its data cannot be read ({error})")),
        Ok((_, len)) if len > file.len => Err(format!(
            "its data is longer than the published {} bytes{form}",
            file.len
        )),
        Ok((sha256, len)) if len != file.len || sha256 != file.sha256 => Err(format!(
            "its data has {len} bytes and SHA-256 {sha256}{form}, but {} bytes with SHA-256 {} are \
             published",
            file.len, file.sha256
        )),
        Ok(_) => Ok(()),
    })
}

/// SHA-256 and length of the content, read no further than one byte beyond `len`.
fn hash(reader: impl Read, len: u64) -> io::Result<(String, u64)> {
    let mut reader = reader.take(len.saturating_add(1));
    let mut hasher = Sha256::new();
    let read = io::copy(&mut reader, &mut hasher)?;
    Ok((hex(&hasher.finalize()), read))
}
