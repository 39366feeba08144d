//! Reads a checkpoint: the files of all ranks as one source of tensors.

use std::collections::{BTreeMap, HashMap};
use std::fs::File;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use burn::tensor::{DType, TensorData};
use serde_json::Value;

use super::shard::{Shard, in_memory};
use super::{CheckpointError, FileEntry, Manifest};
use crate::parallel::{StateSourceRead, reshaped};

/// Largest number of open files.
const MOST_OPEN: usize = 64;

/// An open checkpoint, read tensor by tensor or in parts.
///
/// A rank never holds more than it requests.
#[derive(Debug)]
pub struct Source {
    folder: PathBuf,
    manifest: Manifest,
    shards: Vec<Shard>,
    /// Place of each tensor.
    places: HashMap<String, Location>,
    scalars: BTreeMap<String, Value>,
}

#[derive(Debug)]
enum Location {
    /// In this file.
    Whole(usize),
    /// In several files.
    Parts {
        shape: Vec<usize>,
        /// In the order of their elements, without gaps.
        parts: Vec<Part>,
    },
}

#[derive(Debug)]
struct Part {
    /// Elements of the tensor.
    elements: Range<usize>,
    /// Name in its file.
    name: String,
    file: usize,
}

impl Source {
    /// Opens the checkpoint in `folder`.
    ///
    /// The checksum of a file is verified when its first value is read, so every rank verifies what
    /// it reads.
    ///
    /// # Errors
    /// Names what is missing or damaged.
    pub fn open(folder: &Path) -> Result<Self, CheckpointError> {
        let manifest = Manifest::read(folder)?;
        let many = manifest.files.len() > MOST_OPEN;
        Self::of_shards(folder, manifest, |_, entry| {
            let shard = Shard::open(folder, entry)?;
            Ok(match many {
                true => shard.closed(),
                false => shard,
            })
        })
    }

    /// Opens a checkpoint in memory. `places` are the file and the start of each shard.
    pub(super) fn in_memory(
        manifest: Manifest,
        places: impl Iterator<Item = (Arc<File>, u64)>,
    ) -> Result<Self, CheckpointError> {
        let places: Vec<_> = places.collect();
        Self::of_shards(&in_memory(""), manifest, |file, entry| {
            let missing = || CheckpointError::damaged(&in_memory(&entry.name), "it is missing");
            let (place, start) = places.get(file).ok_or_else(missing)?;
            Shard::within(Arc::clone(place), *start, entry)
        })
    }

    fn of_shards(
        folder: &Path,
        manifest: Manifest,
        open: impl Fn(usize, &FileEntry) -> Result<Shard, CheckpointError>,
    ) -> Result<Self, CheckpointError> {
        let mut shards = Vec::new();
        let mut places = HashMap::new();
        let mut scalars = BTreeMap::new();
        for (file, entry) in manifest.files.iter().enumerate() {
            let path = folder.join(&entry.name);
            let shard = open(file, entry)?;
            for name in shard.names() {
                place(&mut places, file, name, &shard, &entry.parts)
                    .map_err(|reason| CheckpointError::damaged(&path, reason))?;
            }
            shards.push(shard);
            scalars.extend(entry.scalars.clone());
        }
        for (name, place) in &mut places {
            place.check(name).map_err(|reason| {
                CheckpointError::damaged(&folder.join(super::manifest::FILE), reason)
            })?;
        }
        Ok(Self {
            folder: folder.to_owned(),
            manifest,
            shards,
            places,
            scalars,
        })
    }

    /// The manifest of the checkpoint.
    pub fn manifest(&self) -> &Manifest {
        &self.manifest
    }

    fn place(&self, name: &str) -> Result<&Location, String> {
        let missing = || format!("{} does not contain `{name}`", self.folder.display());
        self.places.get(name).ok_or_else(missing)
    }

    fn shard(&self, file: usize) -> Result<&Shard, String> {
        let missing = || format!("{} does not contain the file {file}", self.folder.display());
        self.shards.get(file).ok_or_else(missing)
    }
}

/// Notes the place of a tensor, or of a part of one.
fn place(
    places: &mut HashMap<String, Location>,
    file: usize,
    name: String,
    shard: &Shard,
    parts: &BTreeMap<String, Vec<usize>>,
) -> Result<(), String> {
    let part = name.rsplit_once('#').and_then(|(whole, start)| {
        let shape = parts.get(whole)?;
        Some((whole.to_owned(), start.parse::<usize>().ok()?, shape))
    });
    let Some((whole, start, shape)) = part else {
        return match places.insert(name.clone(), Location::Whole(file)) {
            Some(_) => Err(format!("`{name}` is also in another file")),
            None => Ok(()),
        };
    };
    let len = shard.shape(&name).unwrap_or_default().iter().product();
    let end = start.checked_add(len);
    let part = Part {
        elements: start
            ..end.ok_or_else(|| format!("`{name}` starts at an offset beyond its end"))?,
        name,
        file,
    };
    let entry = places
        .entry(whole.clone())
        .or_insert_with(|| Location::Parts {
            shape: shape.clone(),
            parts: Vec::new(),
        });
    match entry {
        Location::Parts {
            shape: known,
            parts,
        } if known == shape => {
            parts.push(part);
            Ok(())
        }
        _ => Err(format!(
            "`{whole}` is also in another file, with another shape"
        )),
    }
}

impl Location {
    /// Checks that the parts of a tensor are complete, and puts them in order.
    fn check(&mut self, name: &str) -> Result<(), String> {
        let Self::Parts { shape, parts } = self else {
            return Ok(());
        };
        parts.sort_by_key(|part| part.elements.start);
        let mut end = 0;
        for part in parts {
            if part.elements.start != end {
                return Err(format!(
                    "elements of `{name}` from {end} on are missing or duplicated"
                ));
            }
            end = part.elements.end;
        }
        let len = shape.iter().try_fold(1usize, |len, n| len.checked_mul(*n));
        if len == Some(end) {
            return Ok(());
        }
        Err(format!(
            "`{name}` has {end} elements, but its shape is {shape:?}"
        ))
    }
}

impl StateSourceRead for Source {
    fn names(&self) -> Vec<String> {
        let mut names: Vec<String> = self.places.keys().cloned().collect();
        names.sort();
        names
    }

    fn shape(&self, name: &str) -> Result<Vec<usize>, String> {
        match self.place(name)? {
            Location::Parts { shape, .. } => Ok(shape.clone()),
            Location::Whole(file) => {
                let shape = self.shard(*file)?.shape(name);
                shape.ok_or_else(|| format!("its file does not contain `{name}`"))
            }
        }
    }

    fn read(&self, name: &str) -> Result<TensorData, String> {
        match self.place(name)? {
            Location::Whole(file) => {
                let data = self.shard(*file)?.read(name);
                data.map_err(|error| error.to_string())
            }
            Location::Parts { shape, .. } => {
                let len = shape.iter().product();
                Ok(reshaped(self.read_part(name, 0..len)?, shape.clone()))
            }
        }
    }

    fn read_part(&self, name: &str, elements: Range<usize>) -> Result<TensorData, String> {
        let parts = match self.place(name)? {
            Location::Whole(file) => {
                let data = self.shard(*file)?.read_part(name, elements);
                return data.map_err(|error| error.to_string());
            }
            Location::Parts { parts, .. } => parts,
        };
        let mut bytes = Vec::new();
        let (mut dtype, mut len) = (DType::F32, 0);
        for part in parts {
            let from = elements.start.max(part.elements.start);
            let to = elements.end.min(part.elements.end);
            if from >= to {
                continue;
            }
            let own = from - part.elements.start..to - part.elements.start;
            let data = self.shard(part.file)?.read_part(&part.name, own);
            let data = data.map_err(|error| error.to_string())?;
            if len > 0 && data.dtype() != dtype {
                return Err(format!("the parts of `{name}` have different types"));
            }
            dtype = data.dtype();
            len += to - from;
            bytes.extend_from_slice(data.as_bytes());
        }
        if len != elements.len() {
            return Err(format!("`{name}` lacks elements {elements:?}"));
        }
        TensorData::try_from_bytes_vec(bytes, [len], dtype).map_err(|error| error.to_string())
    }

    fn scalars(&self) -> &BTreeMap<String, Value> {
        &self.scalars
    }
}
