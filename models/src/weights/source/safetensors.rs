//! Safetensors files: the length of a JSON header, the header, then all values.

use std::collections::{BTreeMap, HashMap};
use std::fs::File;
use std::io::Read;
use std::os::unix::fs::FileExt;
use std::path::Path;

use safetensors::Dtype;
use safetensors::tensor::Metadata;

use super::{Element, Entry};
use crate::weights::WeightsError;
use crate::weights::float::Float;
use crate::weights::save::{LAYOUT, NATIVE};

/// Bytes of the header's length.
const LENGTH: u64 = size_of::<u64>() as u64;
/// Largest header. A thousand tensors take about 100 KiB.
const MAX_HEADER: u64 = 16 << 20;

/// A file and its header. The header describes exactly the bytes that follow it.
pub(super) struct SafetensorsFile {
    file: File,
    header: Metadata,
    /// Offset of the values.
    values: u64,
}

impl SafetensorsFile {
    pub(super) fn open(path: &Path) -> Result<(Self, BTreeMap<String, Entry>), WeightsError> {
        let unreadable = |source| WeightsError::Read {
            path: path.to_owned(),
            source,
        };
        let invalid = |reason: String| WeightsError::Invalid {
            path: path.to_owned(),
            format: "safetensors",
            reason,
        };
        let mut file = File::open(path).map_err(unreadable)?;
        let size = file.metadata().map_err(unreadable)?.len();
        if size < LENGTH {
            return Err(invalid(format!(
                "it has {size} bytes, too few for a header"
            )));
        }
        let mut length = [0; LENGTH as usize];
        file.read_exact(&mut length).map_err(unreadable)?;
        let length = u64::from_le_bytes(length);
        if length > size - LENGTH {
            return Err(invalid(format!(
                "its header announces {length} bytes, but the file has {size}; it may be truncated"
            )));
        }
        if length > MAX_HEADER {
            return Err(invalid(format!(
                "its header has {length} bytes, more than the maximum of {MAX_HEADER}"
            )));
        }
        let mut header = vec![0; length as usize];
        file.read_exact(&mut header).map_err(unreadable)?;
        let header: Metadata =
            serde_json::from_slice(&header).map_err(|error| invalid(error.to_string()))?;
        let (described, values) = (header.data_len() as u64, LENGTH + length);
        if described != size - values {
            return Err(invalid(format!(
                "its header describes {described} bytes of values, but {} follow; the file may be \
                 truncated",
                size - values
            )));
        }
        let entries = header
            .tensors()
            .into_iter()
            .map(|(key, info)| {
                let element = element(info.dtype);
                let shape = info.shape.clone();
                (key, Entry { shape, element })
            })
            .collect();
        let file = Self {
            file,
            header,
            values,
        };
        Ok((file, entries))
    }

    /// Whether the file has Burn's own names and layouts.
    pub(super) fn is_native(&self) -> bool {
        let about = self.about();
        about.is_some_and(|about| about.get(LAYOUT).is_some_and(|layout| layout == NATIVE))
    }

    /// The file's metadata.
    pub(super) fn about(&self) -> Option<&HashMap<String, String>> {
        self.header.metadata().as_ref()
    }

    pub(super) fn read(&self, key: &str) -> Result<Vec<u8>, String> {
        let info = self.header.info(key).ok_or("it does not exist")?;
        let (start, end) = info.data_offsets;
        // At most the size of the file: `open` compared the last offset with it.
        let mut bytes = vec![0; end - start];
        self.file
            .read_exact_at(&mut bytes, self.values + start as u64)
            .map_err(|error| error.to_string())?;
        Ok(bytes)
    }
}

fn element(dtype: Dtype) -> Element {
    match dtype {
        Dtype::F64 => Element::Float(Float::F64),
        Dtype::F32 => Element::Float(Float::F32),
        Dtype::F16 => Element::Float(Float::F16),
        Dtype::BF16 => Element::Float(Float::BF16),
        other => Element::Other(format!("{other:?}")),
    }
}
