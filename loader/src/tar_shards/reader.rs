//! Reads the samples of one tar file in order.
//!
//! The file cannot decide how much memory is used: a sample has a limit, names have one, and a
//! header that announces more bytes than the file has allocates nothing for them. Nothing is
//! written to disk; names with `..` or a leading `/` are refused all the same.

use std::io::{self, Read};
use std::path::{Path, PathBuf};

use tar::{EntryType, Header, PaxExtensions};

use super::TarError;
use super::input::Input;
use super::sample::{TarSample, key_and_extension};

/// Bytes of a header, and of the unit that contents are padded to.
const BLOCK: u64 = 512;

/// Largest header for a long name, with all other extended attributes of the file.
const MAX_EXTENSION: u64 = 1 << 20;

/// Longest name, as Linux has it.
const MAX_NAME: usize = 4096;

/// Largest number of files in a sample.
const MAX_FILES: usize = 1024;

pub(super) struct TarReader {
    path: PathBuf,
    input: Input,
    /// Offset in the uncompressed content.
    offset: u64,
    max_sample: u64,
    /// Whether the input is a part of a file, which has no end mark.
    is_part: bool,
    /// The first file of the next sample, whose content comes next, or the reason why there is
    /// none.
    ahead: Option<Result<Option<Member>, TarError>>,
}

/// A file that belongs to a sample.
struct Member {
    key: String,
    extension: String,
    size: u64,
    /// Offset of its first header.
    start: u64,
}

/// A sample in its shard.
pub(super) struct Place {
    pub(super) start: u64,
    pub(super) end: u64,
    /// Without files if it was skipped.
    pub(super) sample: TarSample,
}

impl TarReader {
    pub(super) fn open(path: &Path, max_sample: u64, buffer: usize) -> Result<Self, TarError> {
        let input = Input::open(path, buffer).map_err(|source| cannot("open", path, source))?;
        Ok(Self::new(path, input, 0, max_sample))
    }

    /// Reads the sample between two offsets of a file that is not compressed.
    pub(super) fn part(
        path: &Path,
        (start, end): (u64, u64),
        max_sample: u64,
    ) -> Result<Self, TarError> {
        let input = Input::part(path, start, end).map_err(|source| cannot("read", path, source))?;
        let mut reader = Self::new(path, input, start, max_sample);
        reader.is_part = true;
        Ok(reader)
    }

    fn new(path: &Path, input: Input, offset: u64, max_sample: u64) -> Self {
        TarReader {
            path: path.to_owned(),
            input,
            offset,
            max_sample,
            is_part: false,
            ahead: None,
        }
    }

    pub(super) fn is_compressed(&self) -> bool {
        self.input.is_compressed()
    }

    #[cfg(test)]
    pub(super) fn offset(&self) -> u64 {
        self.offset
    }

    /// The next sample; without files if it is not `wanted`.
    pub(super) fn sample(&mut self, wanted: bool) -> Result<Option<Place>, TarError> {
        let first = match self.ahead.take() {
            Some(ahead) => ahead?,
            None => self.member()?,
        };
        let Some(mut member) = first else {
            self.ahead = Some(Ok(None));
            return Ok(None);
        };
        let start = member.start;
        let mut sample = TarSample {
            key: member.key.clone(),
            files: Vec::new(),
        };
        let mut bytes = 0_u64;
        for _ in 0..MAX_FILES {
            bytes = bytes.saturating_add(member.size);
            if bytes > self.max_sample {
                return Err(TarError::TooLarge {
                    path: self.path.clone(),
                    offset: start,
                    limit: self.max_sample,
                });
            }
            if wanted {
                self.keep(&mut sample, &member)?;
            } else {
                self.skip(member.size, "in a file")?;
            }
            self.skip(padding(member.size), "in a file")?;
            let end = self.offset;
            match self.member() {
                Ok(Some(next)) if next.key == sample.key => member = next,
                ahead => {
                    // An error comes after this sample, which is complete.
                    self.ahead = Some(ahead);
                    return Ok(Some(Place { start, end, sample }));
                }
            }
        }
        let key = &sample.key;
        Err(self.damaged(format!("the sample {key} has more than {MAX_FILES} files")))
    }

    /// Reads a file of a sample.
    fn keep(&mut self, sample: &mut TarSample, member: &Member) -> Result<(), TarError> {
        let mut extensions = sample.files.iter().map(|(extension, _)| extension);
        if extensions.any(|extension| *extension == member.extension) {
            let (key, extension) = (&sample.key, &member.extension);
            return Err(self.damaged(format!("it contains {key}.{extension} twice")));
        }
        let content = self.read(member.size, "in a file")?;
        sample.files.push((member.extension.clone(), content));
        Ok(())
    }

    /// The next file that belongs to a sample; its content comes next.
    fn member(&mut self) -> Result<Option<Member>, TarError> {
        let mut start = self.offset;
        let mut long_name = None;
        loop {
            let Some(header) = self.header()? else {
                return Ok(None);
            };
            let kind = header.entry_type();
            let size = header.entry_size();
            let size = size.map_err(|error| self.damaged(error.to_string()))?;
            match kind {
                EntryType::GNULongName => {
                    let mut name = self.extension(size)?;
                    let end = name.iter().position(|&byte| byte == 0);
                    name.truncate(end.unwrap_or(name.len()));
                    long_name = Some(name);
                    continue;
                }
                EntryType::XHeader => {
                    let attributes = self.extension(size)?;
                    long_name = self.pax_name(&attributes)?.or(long_name);
                    continue;
                }
                EntryType::XGlobalHeader | EntryType::GNULongLink => {
                    drop(self.extension(size)?);
                    continue;
                }
                EntryType::GNUSparse => {
                    return Err(self.damaged("it contains a sparse file".into()));
                }
                EntryType::Regular | EntryType::Continuous => {
                    let name = long_name.take();
                    let name = name.unwrap_or_else(|| header.path_bytes().into_owned());
                    let name = self.checked(name)?;
                    if let Some((key, extension)) = key_and_extension(&name) {
                        return Ok(Some(Member {
                            key: key.to_owned(),
                            extension: extension.to_ascii_lowercase(),
                            size,
                            start,
                        }));
                    }
                    self.skip_padded(size)?;
                }
                // These have no content, whatever their size says; as Python's tarfile.
                EntryType::Link
                | EntryType::Symlink
                | EntryType::Char
                | EntryType::Block
                | EntryType::Directory
                | EntryType::Fifo => {}
                _ => self.skip_padded(size)?,
            }
            (start, long_name) = (self.offset, None);
        }
    }

    /// The next header; `None` at the end of the archive.
    fn header(&mut self) -> Result<Option<Header>, TarError> {
        let mut header = Header::new_old();
        let at = self.offset;
        let read = self.fill(header.as_mut_bytes())?;
        if read == 0 && self.is_part {
            return Ok(None);
        }
        if read < BLOCK as usize {
            let place = match read {
                0 => "before the mark of its end",
                _ => "in a header",
            };
            return Err(self.truncated(place));
        }
        let bytes = header.as_bytes();
        if bytes.iter().all(|&byte| byte == 0) {
            let finished = self.input.finish();
            finished.map_err(|error| self.failed(error, "after its last file"))?;
            return Ok(None);
        }
        let field = 148..156; // The checksum counts as spaces.
        let sum = |(place, &byte): (usize, &u8)| match field.contains(&place) {
            true => u32::from(b' '),
            false => u32::from(byte),
        };
        let sum: u32 = bytes.iter().enumerate().map(sum).sum();
        match header.cksum() {
            Ok(expected) if expected == sum => Ok(Some(header)),
            _ => Err(TarError::Damaged {
                path: self.path.clone(),
                reason: "a header has a wrong checksum".into(),
                offset: at,
            }),
        }
    }

    /// The content of a header that extends the next one.
    fn extension(&mut self, size: u64) -> Result<Vec<u8>, TarError> {
        if size > MAX_EXTENSION {
            return Err(self.damaged(format!("an extended header has {size} bytes")));
        }
        let content = self.read(size, "in an extended header")?;
        self.skip(padding(size), "in an extended header")?;
        Ok(content)
    }

    /// The name among the attributes of a PAX header.
    fn pax_name(&self, attributes: &[u8]) -> Result<Option<Vec<u8>>, TarError> {
        let mut name = None;
        for attribute in PaxExtensions::new(attributes) {
            let attribute = attribute.map_err(|error| self.damaged(error.to_string()))?;
            match attribute.key_bytes() {
                b"path" => name = Some(attribute.value_bytes().to_vec()),
                // Files of more than 8 GiB, which are no samples.
                b"size" => return Err(self.damaged("a PAX header has a size".into())),
                key if key.starts_with(b"GNU.sparse") => {
                    return Err(self.damaged("it contains a sparse file".into()));
                }
                _ => {}
            }
        }
        Ok(name)
    }

    /// A name without a leading `./`, if it is one.
    fn checked(&self, name: Vec<u8>) -> Result<String, TarError> {
        if name.len() > MAX_NAME {
            return Err(self.damaged(format!("a name has {} bytes", name.len())));
        }
        let name = String::from_utf8(name);
        let name = name.map_err(|_| self.damaged("a name is not UTF-8".into()))?;
        if name.starts_with('/') || name.split('/').any(|part| part == "..") {
            return Err(self.damaged(format!("the name {name:?} leads out of its folder")));
        }
        Ok(name.strip_prefix("./").map(str::to_owned).unwrap_or(name))
    }

    /// Reads `size` bytes. Memory grows with what is there.
    fn read(&mut self, size: u64, place: &'static str) -> Result<Vec<u8>, TarError> {
        let mut content = Vec::new();
        let known = usize::try_from(size.min(self.input.certain())).unwrap_or(0);
        content.reserve_exact(known);
        let read = self.input.by_ref().take(size).read_to_end(&mut content);
        let read = read.map_err(|error| self.failed(error, place))? as u64;
        self.offset = self.offset.saturating_add(read);
        match read == size {
            true => Ok(content),
            false => Err(self.truncated(place)),
        }
    }

    fn skip_padded(&mut self, size: u64) -> Result<(), TarError> {
        self.skip(size.saturating_add(padding(size)), "in a file")
    }

    fn skip(&mut self, count: u64, place: &'static str) -> Result<(), TarError> {
        let skipped = self.input.skip(count);
        let skipped = skipped.map_err(|error| self.failed(error, place))?;
        self.offset = self.offset.saturating_add(skipped);
        match skipped == count {
            true => Ok(()),
            false => Err(self.truncated(place)),
        }
    }

    /// Fills `buffer` as far as there are bytes; returns their number.
    fn fill(&mut self, buffer: &mut [u8]) -> Result<usize, TarError> {
        let mut filled = 0;
        while let Some(rest) = buffer.get_mut(filled..).filter(|rest| !rest.is_empty()) {
            match self.input.read(rest) {
                Ok(0) => break,
                Ok(read) => filled += read,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(self.failed(error, "in a header")),
            }
        }
        self.offset = self.offset.saturating_add(filled as u64);
        Ok(filled)
    }

    fn failed(&self, error: io::Error, place: &'static str) -> TarError {
        match error.kind() {
            io::ErrorKind::UnexpectedEof => self.truncated(place),
            io::ErrorKind::InvalidData | io::ErrorKind::InvalidInput if self.is_compressed() => {
                self.damaged(error.to_string())
            }
            _ => cannot("read", &self.path, error),
        }
    }

    fn truncated(&self, place: &'static str) -> TarError {
        TarError::Truncated {
            path: self.path.clone(),
            place,
            offset: self.offset,
        }
    }

    fn damaged(&self, reason: String) -> TarError {
        TarError::Damaged {
            path: self.path.clone(),
            reason,
            offset: self.offset,
        }
    }
}

/// Bytes after a content of `size` bytes, up to the next block.
fn padding(size: u64) -> u64 {
    (BLOCK - size % BLOCK) % BLOCK
}

/// The system refused an operation.
pub(super) fn cannot(action: &'static str, path: &Path, source: io::Error) -> TarError {
    TarError::Io {
        action,
        path: path.to_owned(),
        source,
    }
}
