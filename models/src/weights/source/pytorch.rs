//! Files of `torch.save`: a pickle of names, types and shapes beside the values, in a ZIP archive
//! or, as before PyTorch 1.6, in one stream.

use std::collections::{BTreeMap, HashMap};
use std::fs::File;
use std::io::{BufRead, BufReader, Cursor, Read, Seek};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::{Mutex, PoisonError};

use zip::ZipArchive;

use super::pickle::{Found, Pickle, View};
use super::{Element, Entry};
use crate::weights::WeightsError;
use crate::weights::torch_save::ABOUT;

/// Largest pickle, since a small archive can claim any size. A byte of it becomes up to a hundred
/// bytes in memory; a thousand tensors take about 200 KiB.
const MAX_PICKLE: u64 = 4 << 20;
/// Largest metadata: the names of all classes are in it.
const MAX_ABOUT: u64 = 16 << 20;
/// Largest tensor in bytes: a tensor can repeat the bytes of a small storage.
const MAX_TENSOR: usize = 8 << 30;

/// Mark in the first header of a tape archive, and its end.
const TAPE_MARK: &[u8] = b"ustar";
const TAPE_MARK_ENDS: usize = 262;

/// Beginning of a stream: this number, as protocols from 2 on and the first two write it, within
/// this many bytes.
const MAGIC: [u8; 10] = [0x6c, 0xfc, 0x9c, 0x46, 0xf9, 0x20, 0x6a, 0xa8, 0x50, 0x19];
const MAGIC_TEXT: &[u8] = b"119547037146038801333356";
const MAGIC_WITHIN: usize = 64;
/// Version of streams.
const STREAM: i64 = 1001;

/// The tensors of a checkpoint.
pub(super) struct PytorchFile {
    tensors: HashMap<String, View>,
    storages: Storages,
    about: HashMap<String, String>,
}

/// Places of the bytes.
enum Storages {
    Archive(Mutex<ZipArchive<BufReader<File>>>, String),
    Stream {
        file: File,
        /// First byte and length of each, by name.
        places: HashMap<String, (u64, u64)>,
    },
    Nowhere,
}

impl PytorchFile {
    pub(super) fn open(path: &Path) -> Result<(Self, BTreeMap<String, Entry>), WeightsError> {
        let opened = File::open(path).map_err(|source| WeightsError::Read {
            path: path.to_owned(),
            source,
        })?;
        guarded(|| Self::of(opened)).map_err(|reason| WeightsError::Invalid {
            path: path.to_owned(),
            format: "PyTorch checkpoint",
            reason,
        })
    }

    fn of(mut file: File) -> Result<(Self, BTreeMap<String, Entry>), String> {
        let mut start = Vec::new();
        let mut whole = file.by_ref().take(TAPE_MARK_ENDS as u64);
        let read = whole.read_to_end(&mut start);
        let read = read.and_then(|_| file.rewind());
        read.map_err(|error| error.to_string())?;
        if start.len() == TAPE_MARK_ENDS && start.ends_with(TAPE_MARK) {
            return Err(
                "it is a tar archive of PyTorch before 0.1.10. Load it in PyTorch and save it again".to_owned());
        }
        let beginning = &start[..start.len().min(MAGIC_WITHIN)];
        let has = |mark: &[u8]| beginning.windows(mark.len()).any(|bytes| bytes == mark);
        let mut about = HashMap::new();
        let (pickle, storages) = if start.starts_with(b"PK\x03\x04") {
            let (pickle, mut archive, root) = archive(file)?;
            about = metadata(&mut archive, &root);
            (pickle, Storages::Archive(Mutex::new(archive), root))
        } else if has(&MAGIC) || has(MAGIC_TEXT) {
            stream(file)?
        } else if matches!(start.first(), Some(0x80 | b'(' | b'}' | b']' | b'c')) {
            (read_pickle(BufReader::new(file))?, Storages::Nowhere)
        } else {
            return Err("it is neither a zip archive nor a pickle".to_owned());
        };
        let (mut tensors, mut entries) = (HashMap::new(), BTreeMap::new());
        for (key, found) in pickle.tensors()? {
            let (shape, element) = match found {
                Found::Tensor(view) => {
                    let known = (view.shape.clone(), view.element.clone());
                    tensors.insert(key.clone(), view);
                    known
                }
                Found::Unreadable(by) => (Vec::new(), Element::Other(by)),
            };
            entries.insert(key, Entry { shape, element });
        }
        let file = Self {
            tensors,
            storages,
            about,
        };
        Ok((file, entries))
    }

    /// The metadata that this crate wrote; empty for files of PyTorch.
    pub(super) fn about(&self) -> &HashMap<String, String> {
        &self.about
    }

    pub(super) fn read(&self, key: &str) -> Result<Vec<u8>, String> {
        let view = self.tensors.get(key).ok_or("it does not exist")?;
        guarded(|| self.values(view))
    }

    fn values(&self, view: &View) -> Result<Vec<u8>, String> {
        let count = view
            .shape
            .iter()
            .try_fold(1usize, |all, size| all.checked_mul(*size));
        let bytes = count.and_then(|count| count.checked_mul(view.size));
        let Some(bytes) = bytes.filter(|bytes| *bytes <= MAX_TENSOR) else {
            return Err("it is too large".to_owned());
        };
        let end = view.end().and_then(|end| end.checked_mul(view.size));
        let end = end.ok_or("it is too large")?;
        let start = view.offset * view.size;
        let seen = self.part(&view.storage.key, start as u64, end as u64)?;
        if is_contiguous(view) {
            return Ok(seen);
        }
        gathered(view, &seen, bytes)
    }

    /// The bytes of a storage from `start` to `end`.
    fn part(&self, key: &str, start: u64, end: u64) -> Result<Vec<u8>, String> {
        match &self.storages {
            Storages::Archive(archive, root) => {
                let mut archive = archive.lock().unwrap_or_else(PoisonError::into_inner);
                let name = format!("{root}data/{key}");
                let entry = archive
                    .by_name(&name)
                    .map_err(|error| format!("cannot read {name} of the archive: {error}"))?;
                let whole = start == 0 && end == entry.size();
                if end > entry.size() {
                    return Err(format!(
                        "{name} of the archive has {} bytes, fewer than {end}",
                        entry.size()
                    ));
                }
                // Reads beyond its end, so that its checksum is compared, unless only a part is
                // wanted.
                let wanted = if whole { end.saturating_add(1) } else { end };
                read_part(entry.take(wanted), start, end)
            }
            Storages::Stream { file, places } => {
                let (first, len) = places
                    .get(key)
                    .ok_or_else(|| format!("its storage {key} is missing"))?;
                if end > *len {
                    return Err(format!(
                        "its storage {key} has {len} bytes, fewer than {end}"
                    ));
                }
                let mut bytes = vec![0; (end - start) as usize];
                file.read_exact_at(&mut bytes, first + start)
                    .map_err(|error| error.to_string())?;
                Ok(bytes)
            }
            Storages::Nowhere => Err("the file has no values".to_owned()),
        }
    }
}

/// Reads `input` from `start` to `end`, and nothing after that.
fn read_part(mut input: impl Read, start: u64, end: u64) -> Result<Vec<u8>, String> {
    let failed = |error: std::io::Error| error.to_string();
    std::io::copy(&mut input.by_ref().take(start), &mut std::io::sink()).map_err(failed)?;
    let mut bytes = Vec::new();
    input.read_to_end(&mut bytes).map_err(failed)?;
    match bytes.len() as u64 == end - start {
        true => Ok(bytes),
        false => Err(format!(
            "{} bytes were found, {} expected",
            bytes.len(),
            end - start
        )),
    }
}

fn read_pickle(input: impl BufRead) -> Result<Pickle, String> {
    Pickle::read(input.take(MAX_PICKLE))
}

/// A ZIP archive in a file.
type Archive = ZipArchive<BufReader<File>>;

/// The pickle of a ZIP archive, which is `data.pkl` in its only folder, and that folder with the
/// storages.
fn archive(file: File) -> Result<(Pickle, Archive, String), String> {
    let mut archive = ZipArchive::new(BufReader::new(file)).map_err(|error| error.to_string())?;
    let is_pickle = |name: &String| name == "data.pkl" || name.ends_with("/data.pkl");
    let names = archive.file_names().filter_map(Result::ok);
    let names = names.map(|name| name.into_owned());
    let mut pickles: Vec<String> = names.filter(is_pickle).collect();
    // The one nearest to the top.
    pickles.sort_by_key(|name| (name.matches('/').count(), name.clone()));
    let name = pickles.into_iter().next();
    let name = name.ok_or("it is an archive without data.pkl")?;
    let root = name.trim_end_matches("data.pkl").to_owned();
    if let Ok(mut order) = archive.by_name(&format!("{root}byteorder")) {
        let mut text = String::new();
        let read = order.by_ref().take(16).read_to_string(&mut text);
        if read.is_ok() && text.trim() == "big" {
            return Err(
                "its values are big-endian. Load it in PyTorch and save it on another machine"
                    .to_owned(),
            );
        }
    }
    let mut content = Vec::new();
    {
        let entry = archive.by_name(&name).map_err(|error| error.to_string())?;
        if entry.size() > MAX_PICKLE {
            return Err(format!(
                "its data.pkl has {} bytes, more than the maximum of {MAX_PICKLE}",
                entry.size()
            ));
        }
        entry
            .take(MAX_PICKLE + 1)
            .read_to_end(&mut content)
            .map_err(|error| format!("cannot read its data.pkl: {error}"))?;
    }
    let pickle = read_pickle(Cursor::new(content))?;
    Ok((pickle, archive, root))
}

/// The metadata in an archive of this crate. Empty if it has none that can be read.
fn metadata(archive: &mut Archive, root: &str) -> HashMap<String, String> {
    let Ok(entry) = archive.by_name(&format!("{root}{ABOUT}")) else {
        return HashMap::new();
    };
    serde_json::from_reader(entry.take(MAX_ABOUT)).unwrap_or_default()
}

/// The pickle of a stream: a number, a version, facts about the system, the pickle, the names of
/// the storages, and each storage after its length.
fn stream(file: File) -> Result<(Pickle, Storages), String> {
    let mut input = BufReader::new(file);
    read_pickle(&mut input)?;
    if read_pickle(&mut input)?.int() != Some(STREAM) {
        return Err("it is a stream of an unknown version".to_owned());
    }
    if read_pickle(&mut input)?.int_of("little_endian") == Some(0) {
        return Err(
            "its values are big-endian. Load it in PyTorch and save it on another machine"
                .to_owned(),
        );
    }
    let pickle = read_pickle(&mut input)?;
    let names = read_pickle(&mut input)?.names();
    let names = names.ok_or("its list of storages is missing")?;
    let failed = |error: std::io::Error| error.to_string();
    let mut position = input.stream_position().map_err(failed)?;
    let file = input.into_inner();
    let len = file.metadata().map_err(failed)?.len();
    let declared = pickle.storages();
    let mut places = HashMap::new();
    for name in names {
        let mut raw = [0; 8];
        file.read_exact_at(&mut raw, position)
            .map_err(|_| format!("it ends before its storage {name}; the file may be truncated"))?;
        let storage = declared.get(name.as_str());
        let size = storage.map_or(1, |storage| storage.size) as u64;
        let bytes = u64::from_le_bytes(raw).checked_mul(size);
        let end = bytes.and_then(|bytes| (position + 8).checked_add(bytes));
        let (Some(bytes), Some(end)) = (bytes, end.filter(|end| *end <= len)) else {
            return Err(format!(
                "it ends within its storage {name}; the file may be truncated"
            ));
        };
        places.insert(name, (position + 8, bytes));
        position = end;
    }
    Ok((pickle, Storages::Stream { file, places }))
}

/// Whether the elements are contiguous in their order.
fn is_contiguous(view: &View) -> bool {
    let mut expected = 1usize;
    for (size, step) in view.shape.iter().zip(&view.stride).rev() {
        if *size > 1 && *step != expected {
            return false;
        }
        expected = expected.saturating_mul(*size);
    }
    true
}

/// The elements of `view`, row-major, from `seen`, which begins with the first of them.
fn gathered(view: &View, seen: &[u8], bytes: usize) -> Result<Vec<u8>, String> {
    let mut all = Vec::new();
    all.try_reserve_exact(bytes)
        .map_err(|error| error.to_string())?;
    for index in 0..bytes / view.size.max(1) {
        let (mut rest, mut at) = (index, 0);
        for (size, step) in view.shape.iter().zip(&view.stride).rev() {
            at += rest % size * step;
            rest /= size;
        }
        let element = seen.get(at * view.size..(at + 1) * view.size);
        all.extend_from_slice(element.ok_or("its storage is shorter than it says")?);
    }
    Ok(all)
}

/// Turns a panic of a reader into an error: files come from anywhere.
fn guarded<T>(read: impl FnOnce() -> Result<T, String>) -> Result<T, String> {
    contained::run(read)
        .unwrap_or_else(|panic| Err(format!("the reader of the format failed ({panic})")))
}
