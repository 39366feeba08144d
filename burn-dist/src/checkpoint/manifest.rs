//! The manifest of a checkpoint: its contents and their checksums.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Read;
use std::os::unix::fs::FileExt;
use std::path::Path;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::CheckpointError;
use super::folder::write_whole;
use crate::files::open_file;

/// Name of the manifest in the checkpoint's folder.
pub const FILE: &str = "manifest.json";
/// Name of the file with the checksum of [`FILE`].
pub const CHECKSUM_FILE: &str = "manifest.blake3";
/// Version of the format that this module writes and reads.
const VERSION: u32 = 1;
/// Largest manifest. One of ten thousand ranks and parameters is smaller.
const MAX_BYTES: u64 = 256 << 20;
/// Hexadecimal digits of a checksum.
const DIGITS: usize = 2 * blake3::OUT_LEN;

/// Contents of a checkpoint.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Manifest {
    version: u32,
    /// Steps done.
    pub step: u64,
    /// Number of ranks that wrote it.
    pub world_size: usize,
    /// The files, one for each rank.
    pub files: Vec<FileEntry>,
    /// The writer's own data, needed to resume.
    pub meta: Value,
}

/// The file of one rank.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct FileEntry {
    /// Name in the folder.
    pub name: String,
    /// Length in bytes.
    pub bytes: u64,
    /// BLAKE3 checksum, in hexadecimal digits.
    pub blake3: String,
    /// Scalars that the optimizer keeps for the parameters in this file.
    pub scalars: BTreeMap<String, Value>,
    /// The tensors that this file has a part of, with their shapes.
    ///
    /// The part is in the file under `NAME#START`, flat, where `START` is the index of its first
    /// element.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub parts: BTreeMap<String, Vec<usize>>,
}

impl Manifest {
    pub(super) fn new(step: u64, files: Vec<FileEntry>, meta: Value) -> Self {
        Self {
            version: VERSION,
            step,
            world_size: files.len(),
            files,
            meta,
        }
    }

    pub(super) fn write(&self, folder: &Path) -> Result<(), CheckpointError> {
        let path = folder.join(FILE);
        let text = serde_json::to_vec_pretty(self).map_err(|error| CheckpointError::Encode {
            path: path.clone(),
            reason: error.to_string(),
        })?;
        write_whole(&path, &text)?;
        write_whole(&folder.join(CHECKSUM_FILE), checksum_line(&text).as_bytes())
    }

    /// Reads the manifest of the checkpoint in `folder`, not its files.
    ///
    /// # Errors
    /// Fails if the manifest is missing, damaged or of another version.
    pub fn read(folder: &Path) -> Result<Self, CheckpointError> {
        let path = folder.join(FILE);
        if !path.is_file() {
            return Err(CheckpointError::NotACheckpoint(folder.to_owned()));
        }
        let text = read_capped(&path)?;
        let checksum_path = folder.join(CHECKSUM_FILE);
        let line = read_capped(&checksum_path)?;
        let expected = checksum_line(&text);
        if line != expected.as_bytes() {
            // Either the digits differ, or the text that `b3sum` writes after them.
            return Err(match line.starts_with(&expected.as_bytes()[..DIGITS]) {
                true => CheckpointError::damaged(&checksum_path, "the line is not in b3sum format"),
                false => CheckpointError::damaged(&path, "its checksum is wrong"),
            });
        }
        let manifest: Self = serde_json::from_slice(&text)
            .map_err(|error| CheckpointError::damaged(&path, error.to_string()))?;
        if manifest.version != VERSION {
            return Err(CheckpointError::Version {
                path,
                found: manifest.version,
                known: VERSION,
            });
        }
        // A name must be that of a file in this folder, whatever the manifest says.
        let strange = |file: &&FileEntry| Path::new(&file.name).components().count() != 1;
        match manifest.files.iter().find(strange) {
            Some(file) => Err(CheckpointError::damaged(
                &path,
                format!("`{}` is not a valid file name", file.name),
            )),
            None => Ok(manifest),
        }
    }
}

impl FileEntry {
    /// Checks that the file in `folder` is intact.
    ///
    /// # Errors
    /// Describes the damage.
    pub fn verify(&self, folder: &Path) -> Result<(), CheckpointError> {
        let path = folder.join(&self.name);
        let file = open_file(&path).map_err(CheckpointError::io("open", &path))?;
        let length = file
            .metadata()
            .map_err(CheckpointError::io("read", &path))?
            .len();
        if length != self.bytes {
            let reason = format!("it has {length} bytes, expected {}", self.bytes);
            return Err(CheckpointError::damaged(&path, reason));
        }
        self.verify_open(&file, 0, &path)
    }

    /// Checks the shard that begins at `base` in an open file at `path`. The file's cursor stays in
    /// place.
    pub(super) fn verify_open(
        &self,
        file: &File,
        base: u64,
        path: &Path,
    ) -> Result<(), CheckpointError> {
        let shard = Stretch { file, at: base }.take(self.bytes);
        if checksum(shard, path)? == self.blake3 {
            Ok(())
        } else {
            Err(CheckpointError::damaged(path, "its checksum is wrong"))
        }
    }
}

/// The content of [`CHECKSUM_FILE`] for a manifest with this text, in the format of `b3sum`.
fn checksum_line(text: &[u8]) -> String {
    format!("{}  {FILE}\n", blake3::hash(text).to_hex())
}

/// BLAKE3 checksum of what is read from `path`, in hexadecimal digits.
fn checksum(content: impl Read, path: &Path) -> Result<String, CheckpointError> {
    let mut hasher = blake3::Hasher::new();
    hasher
        .update_reader(content)
        .map_err(CheckpointError::io("read", path))?;
    Ok(hasher.finalize().to_hex().to_string())
}

/// Reads a file from an offset on, without its cursor.
struct Stretch<'f> {
    file: &'f File,
    at: u64,
}

impl Read for Stretch<'_> {
    fn read(&mut self, bytes: &mut [u8]) -> std::io::Result<usize> {
        let count = self.file.read_at(bytes, self.at)?;
        self.at += count as u64;
        Ok(count)
    }
}

fn read_capped(path: &Path) -> Result<Vec<u8>, CheckpointError> {
    let file = open_file(path).map_err(CheckpointError::io("open", path))?;
    let mut bytes = Vec::new();
    file.take(MAX_BYTES + 1)
        .read_to_end(&mut bytes)
        .map_err(CheckpointError::io("read", path))?;
    if bytes.len() as u64 > MAX_BYTES {
        return Err(CheckpointError::damaged(path, "it is too long"));
    }
    Ok(bytes)
}
