//! What `torch.save` writes: a pickle of names, types and shapes beside the values.
//!
//! The pickle is interpreted, never executed: of all the calls it may ask for, the reader knows
//! those that put tensors together.

use std::collections::{BTreeMap, HashMap};
use std::fs::File;
use std::io::{BufReader, Read};
use std::path::Path;

use burn_store::pytorch_reader::{DType, PytorchReader, Tensor};
use zip::ZipArchive;

use super::{Element, Entry};
use crate::weights::WeightsError;
use crate::weights::float::Float;

/// Largest pickle that is read from an archive, where a small file can claim any size. A byte of it
/// becomes up to a hundred bytes in memory; a thousand tensors take about 200 KiB.
const MAX_PICKLE: u64 = 4 << 20;

/// What a tape archive has in its first header, and where that ends.
const TAPE_MARK: &[u8] = b"ustar";
const TAPE_MARK_ENDS: usize = 262;

/// The tensors of a checkpoint.
pub(super) struct PytorchFile {
    tensors: HashMap<String, Tensor>,
}

impl PytorchFile {
    pub(super) fn open(path: &Path) -> Result<(Self, BTreeMap<String, Entry>), WeightsError> {
        let invalid = |reason: String| WeightsError::Invalid {
            path: path.to_owned(),
            format: "PyTorch checkpoint",
            reason,
        };
        check_container(path).map_err(invalid)?;
        let reader = guarded(|| PytorchReader::new(path).map_err(|error| error.to_string()))
            .map_err(invalid)?;
        let tensors = reader.into_tensors();
        let entries = tensors
            .iter()
            .map(|(key, tensor)| {
                let element = element(tensor.dtype());
                let shape = tensor.shape().to_vec();
                (key.clone(), Entry { shape, element })
            })
            .collect();
        Ok((Self { tensors }, entries))
    }

    pub(super) fn read(&self, key: &str) -> Result<Vec<u8>, String> {
        let tensor = self.tensors.get(key).ok_or("there is none")?;
        guarded(|| tensor.read().map_err(|error| error.to_string()))
    }
}

/// Refuses what a small file can make very large: a tape archive, whose entries may have holes of any size and in
/// which PyTorch saved before 0.1.10, and a ZIP archive whose pickle is said to be very large. Whoever reads that
/// stops at that size.
fn check_container(path: &Path) -> Result<(), String> {
    // What can't be read or listed is for the reader to complain about.
    let Ok(mut file) = File::open(path) else {
        return Ok(());
    };
    let mut start = Vec::with_capacity(TAPE_MARK_ENDS);
    let read = file
        .by_ref()
        .take(TAPE_MARK_ENDS as u64)
        .read_to_end(&mut start);
    if read.is_ok() && start.ends_with(TAPE_MARK) && start.len() == TAPE_MARK_ENDS {
        return Err(
            "it is a tape archive, as PyTorch wrote before 0.1.10; load it in PyTorch and save it anew"
                .to_owned(),
        );
    }
    let Ok(Ok(mut archive)) = contained::run(|| ZipArchive::new(BufReader::new(file))) else {
        return Ok(());
    };
    for index in 0..archive.len() {
        let Ok(entry) = archive.by_index_raw(index) else {
            continue;
        };
        let pickle = entry.name_raw().ends_with(b"data.pkl");
        if pickle && entry.size() > MAX_PICKLE {
            return Err(format!(
                "its data.pkl has {} bytes, more than the {MAX_PICKLE} that are read",
                entry.size()
            ));
        }
    }
    Ok(())
}

/// Turns a panic of the reader into an error: what is read comes from anywhere.
fn guarded<T>(read: impl FnOnce() -> Result<T, String>) -> Result<T, String> {
    contained::run(read)
        .unwrap_or_else(|panic| Err(format!("the reader of the format failed on it ({panic})")))
}

fn element(dtype: DType) -> Element {
    match dtype {
        DType::F64 => Element::Float(Float::F64),
        DType::F32 => Element::Float(Float::F32),
        DType::F16 => Element::Float(Float::F16),
        DType::BF16 => Element::Float(Float::BF16),
        other => Element::Other(format!("{other:?}")),
    }
}
