//! A checkpoint that is read: all ranks' files, tensor by tensor.

use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};

use burn::tensor::TensorData;
use serde_json::Value;

use super::shard::Shard;
use super::{CheckpointError, Manifest};
use crate::parallel::StateSourceRead;

/// An open checkpoint. Tensors are read one at a time, so no rank ever holds more than it wants.
#[derive(Debug)]
pub struct Source {
    folder: PathBuf,
    manifest: Manifest,
    shards: Vec<Shard>,
    /// Which shard has a tensor.
    places: HashMap<String, usize>,
    scalars: BTreeMap<String, Value>,
}

impl Source {
    /// Opens the checkpoint in `folder`. Checksums of its files are not verified: see
    /// [`FileEntry::verify`](super::FileEntry::verify).
    ///
    /// # Errors
    /// What is missing or damaged.
    pub fn open(folder: &Path) -> Result<Self, CheckpointError> {
        let manifest = Manifest::read(folder)?;
        let mut shards = Vec::new();
        let mut places = HashMap::new();
        let mut scalars = BTreeMap::new();
        for file in &manifest.files {
            let shard = Shard::open(folder.join(&file.name))?;
            for name in shard.names() {
                if places.insert(name.clone(), shards.len()).is_some() {
                    let path = folder.join(&file.name);
                    let reason = format!("another file has `{name}` too");
                    return Err(CheckpointError::damaged(&path, reason));
                }
            }
            shards.push(shard);
            scalars.extend(file.scalars.clone());
        }
        Ok(Self {
            folder: folder.to_owned(),
            manifest,
            shards,
            places,
            scalars,
        })
    }

    /// What the checkpoint holds.
    pub fn manifest(&self) -> &Manifest {
        &self.manifest
    }
}

impl StateSourceRead for Source {
    fn names(&self) -> Vec<String> {
        let mut names: Vec<String> = self.places.keys().cloned().collect();
        names.sort();
        names
    }

    fn read(&self, name: &str) -> Result<TensorData, String> {
        let shard = self
            .places
            .get(name)
            .and_then(|place| self.shards.get(*place));
        match shard {
            Some(shard) => shard.read(name).map_err(|error| error.to_string()),
            None => Err(format!("{} has no `{name}`", self.folder.display())),
        }
    }

    fn scalars(&self) -> &BTreeMap<String, Value> {
        &self.scalars
    }
}
