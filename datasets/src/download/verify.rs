//! Whether a downloaded file holds the published content.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::path::Path;

use flate2::bufread::MultiGzDecoder;
use sha2::{Digest, Sha256};

use super::RemoteFile;
use crate::DatasetError;
use crate::idx::GZIP_MAGIC;

/// Compares the uncompressed content of `path` with the published checksum; the inner error says
/// what is wrong with it. Reads no further than the published length.
pub(super) fn check(path: &Path, file: &RemoteFile) -> Result<Result<(), String>, DatasetError> {
    let stored = File::open(path).map_err(DatasetError::io("open", path))?;
    let mut reader = BufReader::with_capacity(1 << 16, stored);
    let start = reader.fill_buf().map_err(DatasetError::io("read", path))?;
    let hashed = if start.starts_with(&GZIP_MAGIC) {
        hash(MultiGzDecoder::new(reader), file.content_len)
    } else {
        hash(reader, file.content_len)
    };
    Ok(match hashed {
        Err(error) => Err(format!("what it sent cannot be uncompressed ({error})")),
        Ok((_, len)) if len > file.content_len => Err(format!(
            "what it sent is longer than the {} bytes published (uncompressed)",
            file.content_len
        )),
        Ok((sha256, len)) if len != file.content_len || sha256 != file.sha256 => Err(format!(
            "what it sent has {len} bytes with SHA-256 {sha256} (uncompressed), published are {} \
             bytes with {}",
            file.content_len, file.sha256
        )),
        Ok(_) => Ok(()),
    })
}

/// SHA-256 and length of the content, read no further than one byte beyond `len`.
fn hash(reader: impl Read, len: u64) -> io::Result<(String, u64)> {
    let mut reader = reader.take(len.saturating_add(1));
    let mut hasher = Sha256::new();
    let read = io::copy(&mut reader, &mut hasher)?;
    let digits = hasher
        .finalize()
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect();
    Ok((digits, read))
}
