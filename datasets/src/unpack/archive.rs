//! Reads the expected files of a `.tar.gz`, and nothing else.
//!
//! The archive cannot decide where or how much is written: files are matched with a fixed list of
//! names, each has a limit, and so has the whole. Entries are read raw, so that no extension header
//! makes the tar reader collect memory. Reading continues to the very end, which verifies gzip's
//! checksum.

use std::fs::File;
use std::io::{self, BufReader, Read, Write};
use std::path::{Path, PathBuf};

use flate2::bufread::MultiGzDecoder;
use tar::{Archive, Entry, EntryType};

use super::Contents;
use crate::DatasetError;

/// For headers, padding and small files that are not wanted.
const MAX_OTHER: u64 = 64 << 20;

/// Place for the unpacked files.
#[derive(Clone, Copy, Debug)]
pub(super) enum Target<'a> {
    /// A folder.
    Folder(&'a Path),
    /// Memory.
    Memory,
}

/// An unpacked file.
#[derive(Clone, Debug)]
pub(super) struct Unpacked {
    /// Its length in bytes.
    pub(super) len: u64,
    /// Its content, if it is in memory.
    pub(super) bytes: Vec<u8>,
}

/// Reads the files of `contents` into `target`; returns them in that order.
pub(super) fn unpack(
    archive: &Path,
    contents: &Contents,
    target: Target<'_>,
) -> Result<Vec<Unpacked>, DatasetError> {
    let file = File::open(archive).map_err(DatasetError::io("open", archive))?;
    let limits = contents.files.iter().map(|file| file.max_len);
    let unpacking = Unpacking {
        archive,
        contents,
        target,
    };
    let mut tar = Archive::new(Metered {
        reader: MultiGzDecoder::new(BufReader::with_capacity(1 << 18, file)),
        read: 0,
        ended: false,
        limit: limits.fold(MAX_OTHER, u64::saturating_add),
    });
    let outcome = unpacking.members(&mut tar);
    let mut rest = tar.into_inner();
    let files = outcome.and_then(|files| match io::copy(&mut rest, &mut io::sink()) {
        Ok(_) => Ok(files),
        Err(error) => Err(Failure::Read(error, "after its last file".into())),
    });
    let files = files.map_err(|failure| unpacking.explain(failure, rest.read, rest.ended))?;
    let lacks: Vec<String> = contents
        .files
        .iter()
        .zip(&files)
        .filter(|(_, found)| found.is_none())
        .map(|(file, _)| file.name.to_owned())
        .collect();
    if !lacks.is_empty() {
        return Err(DatasetError::ArchiveLacks {
            path: archive.to_owned(),
            files: lacks,
        });
    }
    Ok(files.into_iter().flatten().collect())
}

/// The reason why unpacking ended.
enum Failure {
    /// The archive cannot be read at this place.
    Read(io::Error, String),
    /// A file in the archive is not as expected.
    Content(String),
    /// This machine refused an operation.
    Machine(DatasetError),
}

struct Unpacking<'a> {
    archive: &'a Path,
    contents: &'a Contents<'a>,
    target: Target<'a>,
}

impl Unpacking<'_> {
    /// Unpacks the members that are found.
    fn members(&self, tar: &mut Archive<impl Read>) -> Result<Vec<Option<Unpacked>>, Failure> {
        let mut files = vec![None; self.contents.files.len()];
        let mut place = "in its first header".to_owned();
        let entries = tar.entries();
        let entries = entries.map_err(|error| Failure::Read(error, place.clone()))?;
        for entry in entries.raw(true) {
            let mut entry = entry.map_err(|error| Failure::Read(error, place.clone()))?;
            let Some(index) = self.wanted(&entry) else {
                place = "after a file that is not needed".into();
                continue;
            };
            if let Some(file) = files.get_mut(index) {
                if file.is_some() {
                    let name = String::from_utf8_lossy(&entry.path_bytes()).into_owned();
                    return Err(Failure::Content(format!("it contains {name} twice")));
                }
                *file = self.member(&mut entry, index)?;
            }
            place = "after one of its files".into();
        }
        Ok(files)
    }

    /// Index of an entry among the expected files.
    fn wanted(&self, entry: &Entry<'_, impl Read>) -> Option<usize> {
        let kind = entry.header().entry_type();
        if !matches!(kind, EntryType::Regular | EntryType::Continuous) {
            return None;
        }
        let path = entry.path_bytes();
        let path = path.strip_prefix(b"./").unwrap_or(&path);
        let name = path
            .strip_prefix(self.contents.folder.as_bytes())
            .and_then(|rest| rest.strip_prefix(b"/"))
            .unwrap_or(path);
        let mut files = self.contents.files.iter();
        files.position(|file| file.name.as_bytes() == name)
    }

    /// Unpacks one file.
    fn member(
        &self,
        entry: &mut Entry<'_, impl Read>,
        index: usize,
    ) -> Result<Option<Unpacked>, Failure> {
        let Some(file) = self.contents.files.get(index) else {
            return Ok(None);
        };
        let promised = entry.size();
        if promised > file.max_len {
            return Err(Failure::Content(format!(
                "it announces {promised} bytes of {}, which has at most {}",
                file.name, file.max_len
            )));
        }
        let mut output = Output::create(self.target, file.name)?;
        let mut buffer = vec![0; 1 << 18];
        let mut written = 0;
        loop {
            let read = match entry.read(&mut buffer) {
                Ok(0) => break,
                Ok(read) => read,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => return Err(Failure::Read(error, format!("in {}", file.name))),
            };
            output.write(buffer.get(..read).unwrap_or_default())?;
            written += read as u64;
        }
        if written != promised {
            let error = io::ErrorKind::UnexpectedEof.into();
            return Err(Failure::Read(error, format!("in {}", file.name)));
        }
        let bytes = output.finish()?;
        Ok(Some(Unpacked {
            len: written,
            bytes,
        }))
    }

    /// The error for a failure after `read` bytes; `ended` means that no more came.
    fn explain(&self, failure: Failure, read: u64, ended: bool) -> DatasetError {
        use io::ErrorKind::{InvalidData, InvalidInput, Other, UnexpectedEof};
        let path = self.archive.to_owned();
        let malformed = |path, reason| DatasetError::Malformed {
            path,
            offset: read,
            reason,
        };
        match failure {
            Failure::Machine(error) => error,
            Failure::Content(reason) => malformed(path, reason),
            Failure::Read(error, place) => match error.kind() {
                // The tar reader's error for half a header has no specific kind.
                kind if kind == UnexpectedEof || (kind == Other && ended) => {
                    DatasetError::ArchiveTruncated {
                        path,
                        place,
                        found: read,
                    }
                }
                InvalidData | InvalidInput | Other => {
                    malformed(path, format!("cannot read it {place} ({error})"))
                }
                _ => DatasetError::io("read", self.archive)(error),
            },
        }
    }
}

/// A file that is being unpacked.
enum Output {
    File(File, PathBuf),
    Memory(Vec<u8>),
}

impl Output {
    fn create(target: Target<'_>, name: &str) -> Result<Self, Failure> {
        let Target::Folder(folder) = target else {
            return Ok(Self::Memory(Vec::new()));
        };
        let path = folder.join(name);
        let file = File::options().write(true).create_new(true).open(&path);
        let file = file.map_err(|error| machine("create", &path, error))?;
        Ok(Self::File(file, path))
    }

    fn write(&mut self, chunk: &[u8]) -> Result<(), Failure> {
        match self {
            Self::File(file, path) => {
                let written = file.write_all(chunk);
                written.map_err(|error| machine("write", path, error))
            }
            Self::Memory(bytes) => {
                bytes.extend_from_slice(chunk);
                Ok(())
            }
        }
    }

    /// Completes the file; returns the content that is in memory.
    fn finish(self) -> Result<Vec<u8>, Failure> {
        match self {
            // The name that means "complete" must not reach the disk before the content.
            Self::File(file, path) => match file.sync_all() {
                Ok(()) => Ok(Vec::new()),
                Err(error) => Err(machine("write", &path, error)),
            },
            Self::Memory(bytes) => Ok(bytes),
        }
    }
}

fn machine(action: &'static str, path: &Path, error: io::Error) -> Failure {
    Failure::Machine(DatasetError::io(action, path)(error))
}

/// Counts the bytes read, and fails if they are too many.
struct Metered<R> {
    reader: R,
    read: u64,
    ended: bool,
    limit: u64,
}

impl<R: Read> Read for Metered<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.reader.read(buffer)?;
        self.read += read as u64;
        self.ended |= read == 0 && !buffer.is_empty();
        if self.read > self.limit {
            let reason = format!(
                "it unpacks to more than the maximum of {} bytes",
                self.limit
            );
            return Err(io::Error::new(io::ErrorKind::InvalidData, reason));
        }
        Ok(read)
    }
}
