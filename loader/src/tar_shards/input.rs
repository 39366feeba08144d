//! The bytes of a shard: a file, a part of it, or decompressed ones.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read, Seek, SeekFrom};
use std::path::Path;

use flate2::bufread::MultiGzDecoder;

/// Bytes read from the system at once, for contents.
pub(super) const CONTENTS: usize = 1 << 18;
/// Bytes read from the system at once if contents are skipped.
pub(super) const HEADERS: usize = 1 << 12;

/// Bytes after the end of an archive that are read for the checksum of gzip.
const MAX_PADDING: u64 = 1 << 20;

pub(super) enum Input {
    /// A file or a part of it, and the number of bytes left.
    Plain(BufReader<File>, u64),
    Gzip(Box<MultiGzDecoder<BufReader<File>>>),
}

impl Input {
    pub(super) fn open(path: &Path, buffer: usize) -> io::Result<Self> {
        let mut reader = BufReader::with_capacity(buffer, File::open(path)?);
        if reader.fill_buf()?.starts_with(&[0x1f, 0x8b]) {
            return Ok(Input::Gzip(Box::new(MultiGzDecoder::new(reader))));
        }
        let len = reader.get_ref().metadata()?.len();
        Ok(Input::Plain(reader, len))
    }

    /// The bytes from `start` to `end` of a file that is not compressed.
    pub(super) fn part(path: &Path, start: u64, end: u64) -> io::Result<Self> {
        let mut file = File::open(path)?;
        file.seek(SeekFrom::Start(start))?;
        let len = end.saturating_sub(start);
        let capacity = usize::try_from(len)
            .unwrap_or(CONTENTS)
            .clamp(512, CONTENTS);
        Ok(Input::Plain(BufReader::with_capacity(capacity, file), len))
    }

    pub(super) fn is_compressed(&self) -> bool {
        matches!(self, Input::Gzip(_))
    }

    /// A number of bytes to reserve memory for at once: those of the file, or a few.
    pub(super) fn certain(&self) -> u64 {
        match self {
            Input::Plain(_, left) => *left,
            Input::Gzip(_) => 1 << 16,
        }
    }

    /// Skips up to `count` bytes; returns how many there were.
    pub(super) fn skip(&mut self, count: u64) -> io::Result<u64> {
        match self {
            Input::Plain(reader, left) => {
                let skipped = count.min(*left);
                // Keeps what is in the buffer, if the place is there.
                reader.seek_relative(i64::try_from(skipped).map_err(io::Error::other)?)?;
                *left -= skipped;
                Ok(skipped)
            }
            Input::Gzip(_) => io::copy(&mut self.by_ref().take(count), &mut io::sink()),
        }
    }

    /// Reads the padding after the end, which verifies the checksum of gzip.
    pub(super) fn finish(&mut self) -> io::Result<()> {
        if self.is_compressed() {
            self.skip(MAX_PADDING)?;
        }
        Ok(())
    }
}

impl Read for Input {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            Input::Plain(reader, left) => {
                let read = reader.by_ref().take(*left).read(buffer)?;
                *left -= read as u64;
                Ok(read)
            }
            Input::Gzip(reader) => reader.read(buffer),
        }
    }
}
