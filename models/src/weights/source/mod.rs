//! Files with named tensors.

mod pickle;
mod pytorch;
mod safetensors;

use std::collections::{BTreeMap, HashMap};
use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use super::WeightsError;
use super::float::Float;
use super::layout::BATCHES;
use pytorch::PytorchFile;
use safetensors::SafetensorsFile;

/// A file's description of one of its tensors.
#[derive(Clone, Debug)]
pub(super) struct Entry {
    pub shape: Vec<usize>,
    pub element: Element,
}

/// Type of a tensor's elements.
#[derive(Clone, Debug)]
pub(super) enum Element {
    Float(Float),
    /// The name of any other type.
    Other(String),
}

/// An open file. Values are read on request.
pub(super) struct Source {
    path: PathBuf,
    container: Container,
    entries: BTreeMap<String, Entry>,
}

enum Container {
    Safetensors(SafetensorsFile),
    Pytorch(PytorchFile),
}

impl Source {
    /// Opens `path` and reads the names, types and shapes of its tensors.
    ///
    /// The content decides the format, not the name of the file.
    pub(super) fn open(path: &Path) -> Result<Self, WeightsError> {
        let (container, entries) = if is_safetensors(path)? {
            let (file, entries) = SafetensorsFile::open(path)?;
            (Container::Safetensors(file), entries)
        } else {
            let (file, entries) = PytorchFile::open(path)?;
            (Container::Pytorch(file), entries)
        };
        Ok(Self {
            path: path.to_owned(),
            container,
            entries,
        })
    }

    /// Whether names and layouts are Burn's own.
    pub(super) fn is_native(&self) -> bool {
        match &self.container {
            Container::Safetensors(file) => file.is_native(),
            Container::Pytorch(_) => false,
        }
    }

    /// The file's metadata; empty if its format has none.
    pub(super) fn about(&self) -> HashMap<String, String> {
        match &self.container {
            Container::Safetensors(file) => file.about().cloned().unwrap_or_default(),
            Container::Pytorch(file) => file.about().clone(),
        }
    }

    /// All tensors by name.
    pub(super) fn entries(&self) -> &BTreeMap<String, Entry> {
        &self.entries
    }

    /// The values of tensor `key`. The caller has checked its shape, which bounds the memory.
    pub(super) fn read(&mut self, key: &str) -> Result<Vec<f32>, WeightsError> {
        let values = match self.entries.get(key) {
            Some(Entry {
                element: Element::Float(float),
                ..
            }) => self.bytes(key).and_then(|bytes| {
                let values = float.decode(&bytes);
                values.ok_or_else(|| "its bytes do not divide into elements".to_owned())
            }),
            Some(_) => Err("it is not floating-point".to_owned()),
            None => Err("it does not exist".to_owned()),
        };
        values
            .and_then(finite)
            .map_err(|reason| WeightsError::Tensor {
                path: self.path.clone(),
                key: key.to_owned(),
                reason,
            })
    }
}

impl Source {
    /// The readable batch counters under `prefix`.
    pub(super) fn batches(&self, prefix: &str) -> BTreeMap<String, i64> {
        let keys = self.entries.range(prefix.to_owned()..);
        let keys = keys.take_while(|(key, _)| key.starts_with(prefix));
        let counters = keys.filter(|(key, entry)| {
            let name = key.rsplit('.').next();
            name == Some(BATCHES) && entry.shape.iter().product::<usize>() == 1
        });
        let counts = counters.filter_map(|(key, _)| {
            let bytes = self.bytes(key).ok()?;
            let count = i64::from_le_bytes(bytes.try_into().ok()?);
            Some((key.clone(), count))
        });
        counts.collect()
    }

    fn bytes(&self, key: &str) -> Result<Vec<u8>, String> {
        match &self.container {
            Container::Safetensors(file) => file.read(key),
            Container::Pytorch(file) => file.read(key),
        }
    }
}

/// Fails if one of `values` is NaN or infinite: a model with it would compute only NaN.
fn finite(values: Vec<f32>) -> Result<Vec<f32>, String> {
    match values.iter().position(|value| !value.is_finite()) {
        None => Ok(values),
        Some(index) => Err(format!(
            "its element {index} is {}: the training that wrote it diverged",
            values[index]
        )),
    }
}

/// Whether `path` begins like a safetensors file (the header's length, then its JSON) or has its
/// extension.
fn is_safetensors(path: &Path) -> Result<bool, WeightsError> {
    let mut start = Vec::with_capacity(9);
    let mut read = || {
        // Opening a pipe would wait for its writer.
        if !std::fs::metadata(path)?.is_file() {
            return Err(io::Error::other("it is not a regular file"));
        }
        File::open(path)?.take(9).read_to_end(&mut start)
    };
    read().map_err(|source| WeightsError::Read {
        path: path.to_owned(),
        source,
    })?;
    let named = path.extension().is_some_and(|name| name == "safetensors");
    let zip = start.starts_with(b"PK\x03\x04");
    Ok(start.get(8) == Some(&b'{') || named && !zip)
}
