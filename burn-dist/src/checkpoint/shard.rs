//! The file of one rank: its tensors in the safetensors format.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use burn::tensor::{BoolStore, Bytes, DType, TensorData};
use parking_lot::Mutex;
use safetensors::Dtype;
use safetensors::tensor::{Metadata, View};

use super::CheckpointError;
use super::manifest::FileEntry;
use crate::files::{CheckedFile, Content, Disk, open_file, write_tensors};
use crate::parallel::{StateValues, reshaped};

/// Longest header that is read; safetensors' own limit.
const MAX_HEADER: u64 = 100_000_000;
/// Bytes before the header, which hold its length.
const PREFIX: u64 = 8;

/// Burn's element types and those of safetensors.
const TYPES: [(DType, Dtype); 13] = [
    (DType::F64, Dtype::F64),
    (DType::F32, Dtype::F32),
    (DType::F16, Dtype::F16),
    (DType::BF16, Dtype::BF16),
    (DType::I64, Dtype::I64),
    (DType::I32, Dtype::I32),
    (DType::I16, Dtype::I16),
    (DType::I8, Dtype::I8),
    (DType::U32, Dtype::U32),
    (DType::U8, Dtype::U8),
    (DType::U64, Dtype::U64),
    (DType::U16, Dtype::U16),
    (BOOL, Dtype::BOOL),
];

/// The form of booleans in files, whatever the device uses: a byte each, 0 or 1.
const BOOL: DType = DType::Bool(BoolStore::Native);

/// Name of a rank's file.
pub(super) fn file_name(rank: usize, size: usize) -> String {
    format!("rank-{rank:05}-of-{size:05}.safetensors")
}

/// Writes a rank's file, waits until it is on disk, and compares it with `values`.
pub(super) fn write(
    folder: &Path,
    name: String,
    values: StateValues,
) -> Result<FileEntry, CheckpointError> {
    let path = folder.join(&name);
    let file = CheckedFile::create(&path).map_err(CheckpointError::io("write", &path))?;
    write_to(file, &path, name, values, CheckedFile::finish)
}

/// The place of a shard in memory, for messages.
pub(super) fn in_memory(name: &str) -> PathBuf {
    Path::new("memory").join(name)
}

/// Writes `values` to `file`, which `finish` then closes.
pub(super) fn write_to<D: Disk>(
    mut file: CheckedFile<D>,
    path: &Path,
    name: String,
    values: StateValues,
    finish: impl FnOnce(CheckedFile<D>) -> io::Result<Content>,
) -> Result<FileEntry, CheckpointError> {
    let encode = |reason: String| CheckpointError::Encode {
        path: path.to_owned(),
        reason,
    };
    let parts = values.parts.iter();
    let part_names: Vec<String> = parts
        .map(|part| part_name(&part.name, part.start))
        .collect();
    let parts = values.parts.iter().map(|part| &part.data);
    let whole = values.tensors.iter().map(|(name, data)| (name, data));
    let mut tensors = Vec::with_capacity(values.tensors.len() + values.parts.len());
    for (name, data) in whole.chain(part_names.iter().zip(parts)) {
        let (stored, bytes) = stored(data);
        let dtype = TYPES.iter().find(|(dtype, _)| *dtype == stored);
        let Some((_, dtype)) = dtype else {
            return Err(encode(format!(
                "`{name}` has type {:?}, which safetensors cannot store. Keep quantized tensors \
                 outside the model's parameters, or dequantize them",
                data.dtype()
            )));
        };
        let shape = data.shape().to_vec();
        let dtype = *dtype;
        let tensor = Tensor {
            dtype,
            shape,
            bytes,
        };
        tensors.push((name.as_str(), tensor));
    }
    let info = BTreeMap::from([("format".to_owned(), "burn-dist".to_owned())]);
    let content = write_tensors(&mut file, tensors, &info)
        .and_then(|()| finish(file))
        .map_err(CheckpointError::io("write", path))?;
    Ok(FileEntry {
        name,
        bytes: content.bytes,
        blake3: content.blake3,
        scalars: values.scalars,
        parts: values
            .parts
            .into_iter()
            .map(|part| (part.name, part.shape))
            .collect(),
    })
}

/// Type and bytes of values in a file.
fn stored(data: &TensorData) -> (DType, Cow<'_, [u8]>) {
    let bytes = data.as_bytes();
    let width = match data.dtype() {
        DType::Bool(BoolStore::U8) => 1,
        DType::Bool(BoolStore::U32) => 4,
        other => return (other, Cow::Borrowed(bytes)),
    };
    let elements = bytes.chunks_exact(width);
    let is_true = |element: &[u8]| u8::from(element.iter().any(|byte| *byte != 0));
    (BOOL, elements.map(is_true).collect())
}

/// Name of a part of a tensor that begins at element `start`.
fn part_name(name: &str, start: usize) -> String {
    format!("{name}#{start}")
}

/// A tensor in the form that safetensors needs.
struct Tensor<'d> {
    dtype: Dtype,
    shape: Vec<usize>,
    bytes: Cow<'d, [u8]>,
}

impl View for Tensor<'_> {
    fn dtype(&self) -> Dtype {
        self.dtype
    }

    fn shape(&self) -> &[usize] {
        &self.shape
    }

    fn data(&self) -> Cow<'_, [u8]> {
        Cow::Borrowed(&self.bytes)
    }

    fn data_len(&self) -> usize {
        self.bytes.len()
    }
}

/// An open file of a rank, with its header.
#[derive(Debug)]
pub(super) struct Shard {
    path: PathBuf,
    /// Open, unless too many files are.
    file: Option<Arc<File>>,
    /// Start of the shard in its file.
    base: u64,
    metadata: Metadata,
    /// Offset of the values.
    start: u64,
    /// The manifest's entry, until this process has compared the file with it.
    unverified: Mutex<Option<FileEntry>>,
}

impl Shard {
    /// Opens the file of `entry` in `folder`. Its checksum is verified when the first value is
    /// read.
    pub(super) fn open(folder: &Path, entry: &FileEntry) -> Result<Self, CheckpointError> {
        let path = folder.join(&entry.name);
        let file = open_file(&path).map_err(CheckpointError::io("open", &path))?;
        let length = file.metadata().map(|metadata| metadata.len());
        let length = length.map_err(CheckpointError::io("read", &path))?;
        Self::read_header(path, Arc::new(file), 0..length, entry)
    }

    /// Opens the shard of `entry` that begins at `base` in an open file. Its checksum is verified
    /// when the first value is read.
    pub(super) fn within(
        file: Arc<File>,
        base: u64,
        entry: &FileEntry,
    ) -> Result<Self, CheckpointError> {
        let end = base.saturating_add(entry.bytes);
        Self::read_header(in_memory(&entry.name), file, base..end, entry)
    }

    fn read_header(
        path: PathBuf,
        file: Arc<File>,
        place: Range<u64>,
        entry: &FileEntry,
    ) -> Result<Self, CheckpointError> {
        let damaged = |reason: String| CheckpointError::damaged(&path, reason);
        let total = place.end - place.start;
        let mut prefix = [0; PREFIX as usize];
        file.read_exact_at(&mut prefix, place.start)
            .map_err(CheckpointError::io("read", &path))?;
        let length = u64::from_le_bytes(prefix);
        if length > MAX_HEADER.min(total) {
            return Err(damaged(format!("its header would have {length} bytes")));
        }
        let mut header = vec![0; length as usize];
        file.read_exact_at(&mut header, place.start + PREFIX)
            .map_err(CheckpointError::io("read", &path))?;
        let metadata: Metadata =
            serde_json::from_slice(&header).map_err(|error| damaged(error.to_string()))?;
        let start = PREFIX + length;
        if start.checked_add(metadata.data_len() as u64) != Some(total) {
            return Err(damaged("its length does not match its header".to_owned()));
        }
        Ok(Self {
            path,
            file: Some(file),
            base: place.start,
            metadata,
            start: place.start + start,
            unverified: Mutex::new(Some(FileEntry {
                name: entry.name.clone(),
                bytes: entry.bytes,
                blake3: entry.blake3.clone(),
                scalars: BTreeMap::new(),
                parts: BTreeMap::new(),
            })),
        })
    }

    /// Opens the file again for every read: a process may have fewer open files than a run has
    /// ranks.
    pub(super) fn closed(self) -> Self {
        Self { file: None, ..self }
    }

    /// Compares the file with the manifest, once in this process: a rank on another node may have
    /// seen other bytes.
    fn verify(&self, file: &File) -> Result<(), CheckpointError> {
        let mut unverified = self.unverified.lock();
        if let Some(entry) = &*unverified {
            entry.verify_open(file, self.base, &self.path)?;
            *unverified = None;
        }
        Ok(())
    }

    pub(super) fn names(&self) -> Vec<String> {
        self.metadata.offset_keys()
    }

    /// Shape of a tensor.
    pub(super) fn shape(&self, name: &str) -> Option<Vec<usize>> {
        Some(self.metadata.info(name)?.shape.clone())
    }

    pub(super) fn read(&self, name: &str) -> Result<TensorData, CheckpointError> {
        let shape = self.shape(name).unwrap_or_default();
        let elements = 0..shape.iter().product();
        Ok(reshaped(self.read_part(name, elements)?, shape))
    }

    /// Some elements of a tensor, flat.
    pub(super) fn read_part(
        &self,
        name: &str,
        elements: Range<usize>,
    ) -> Result<TensorData, CheckpointError> {
        let damaged = |reason: String| CheckpointError::damaged(&self.path, reason);
        let info = self
            .metadata
            .info(name)
            .ok_or_else(|| damaged(format!("tensor `{name}` is missing")))?;
        let dtype = TYPES.iter().find(|(_, dtype)| *dtype == info.dtype);
        let Some((dtype, _)) = dtype else {
            return Err(damaged(format!(
                "`{name}` has unsupported type {:?}",
                info.dtype
            )));
        };
        // The header was checked against the file's length, which bounds this.
        let (begin, end) = info.data_offsets;
        let width = dtype.size();
        let span = elements
            .start
            .checked_mul(width)
            .zip(elements.end.checked_mul(width))
            .filter(|(from, to)| from <= to && *to <= end - begin);
        let Some((from, to)) = span else {
            return Err(damaged(format!("`{name}` lacks elements {elements:?}")));
        };
        let mut bytes = vec![0; to - from];
        let opened;
        let file = match &self.file {
            Some(file) => file,
            None => {
                opened = open_file(&self.path).map_err(CheckpointError::io("open", &self.path))?;
                &opened
            }
        };
        self.verify(file)?;
        file.read_exact_at(&mut bytes, self.start + (begin + from) as u64)
            .map_err(CheckpointError::io("read", &self.path))?;
        if *dtype == BOOL && bytes.iter().any(|byte| *byte > 1) {
            return Err(damaged(format!("`{name}` is not a boolean")));
        }
        let bytes = Bytes::from_bytes_vec(bytes);
        TensorData::try_from_bytes(bytes, [elements.len()], *dtype)
            .map_err(|error| damaged(format!("`{name}`: {error}")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::files::{Fault, Faulty};

    #[test]
    fn booleans_and_small_integers_come_back_however_they_are_stored() {
        let values = [true, false, false, true, true];
        let native = TensorData::new(values.to_vec(), [5]);
        let whole: Vec<TensorData> = [BoolStore::Native, BoolStore::U8, BoolStore::U32]
            .map(|store| native.clone().convert_dtype(DType::Bool(store)))
            .into();
        let mut tensors: Vec<(String, TensorData)> = whole
            .into_iter()
            .map(|data| (format!("{:?}", data.dtype()), data))
            .collect();
        let integers = TensorData::new(vec![7u16, u16::MAX], [2]);
        tensors.push(("u16".to_owned(), integers.clone()));
        let names: Vec<String> = tensors.iter().map(|(name, _)| name.clone()).collect();
        let folder = tempfile::tempdir().unwrap();
        let values = StateValues {
            tensors,
            ..StateValues::default()
        };
        let entry = write(folder.path(), file_name(0, 1), values).unwrap();
        let path = folder.path().join(&entry.name);
        let shard = Shard::open(folder.path(), &entry).unwrap();
        for name in names.iter().take(3) {
            assert_eq!(shard.read(name).unwrap(), native, "{name}");
            let part = shard.read_part(name, 1..4).unwrap();
            assert_eq!(part.try_to_vec::<bool>().unwrap(), [false, false, true]);
        }
        assert_eq!(shard.read("u16").unwrap(), integers);
        assert_eq!(shard.closed().read("u16").unwrap(), integers);
        // A byte other than 0 or 1 is not a boolean.
        let mut bytes = std::fs::read(&path).unwrap();
        let last = bytes.len() - 1;
        *bytes.get_mut(last).unwrap() = 2;
        std::fs::write(&path, &bytes).unwrap();
        let shard = Shard::open(folder.path(), &entry).unwrap();
        let damaged = names.iter().filter(|name| shard.read(name).is_err());
        assert_eq!(damaged.count(), names.len(), "the checksum is another one");
        let entry = FileEntry {
            blake3: blake3::hash(&bytes).to_hex().to_string(),
            ..entry
        };
        let shard = Shard::open(folder.path(), &entry).unwrap();
        let damaged = names.iter().filter(|name| shard.read(name).is_err());
        assert_eq!(damaged.count(), 1);
    }

    /// A disk that claims to have written bytes that it has not. A real file system did, and resume
    /// went on from zeros.
    #[test]
    fn values_that_do_not_reach_the_disk_are_not_certified() {
        for fault in [Fault::Missing(0), Fault::Changed(0), Fault::Close] {
            let values = StateValues {
                tensors: vec![("a".to_owned(), TensorData::new(vec![1.0f32; 9], [9]))],
                ..StateValues::default()
            };
            let file = CheckedFile::new(Faulty::new(fault));
            let path = Path::new("folder/file");
            let error =
                write_to(file, path, "file".to_owned(), values, CheckedFile::finish).unwrap_err();
            let error = error.to_string();
            assert!(error.starts_with("cannot write folder/file: "), "{error}");
        }
    }
}
