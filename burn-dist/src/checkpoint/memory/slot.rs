//! A slot of a node's memory: shards of one moment, then a table of them.

use std::fs::File;
use std::io::{self, Seek, SeekFrom};
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::checkpoint::{CheckpointError, FileEntry, shard};
use crate::files::CheckedFile;
use crate::parallel::StateValues;

/// The end of a complete slot: the table's checksum and length, and this mark.
const END: usize = blake3::OUT_LEN + 2 * size_of::<u64>();
const MARK: u64 = u64::from_le_bytes(*b"burndist");
/// Largest table, as of a manifest.
const MOST_BYTES: u64 = 256 << 20;

/// The moment of a state. Later ones are larger.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(super) struct Moment {
    /// Generation of the ranks, by their agent's count.
    pub generation: u32,
    /// Number of the state among those of the generation.
    pub number: u64,
    /// Random mark of the ranks, the same on all.
    pub ranks: u64,
    /// Steps done.
    pub step: u64,
}

/// A rank's shard of the state.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Record {
    pub moment: Moment,
    pub rank: usize,
    /// Number of ranks. Each has one shard.
    pub size: usize,
    pub entry: FileEntry,
    /// The owner's data. Only rank 0 has it.
    pub meta: Value,
    /// Start in the slot, in bytes.
    pub start: u64,
}

impl Record {
    pub(super) fn end(&self) -> u64 {
        self.start.saturating_add(self.entry.bytes)
    }
}

/// Makes the slot incomplete. It keeps its memory: new pages cost more than the copy.
pub(super) fn begin(slot: &File) -> io::Result<()> {
    let length = slot.metadata()?.len();
    slot.write_all_at(&[0; END], length.saturating_sub(END as u64))
}

/// Writes the shard at the beginning of the slot. Returns its entry in a manifest.
pub(super) fn write(
    slot: &Arc<File>,
    name: String,
    values: StateValues,
) -> Result<FileEntry, CheckpointError> {
    let path = shard::in_memory(&name);
    let restart = || -> io::Result<File> {
        let mut file = slot.try_clone()?;
        file.seek(SeekFrom::Start(0))?;
        Ok(file)
    };
    let file = restart().map_err(CheckpointError::io("write", &path))?;
    shard::write_to(CheckedFile::new(file), &path, name, values, |file| {
        file.finish_in_memory()
    })
}

/// Writes the table behind the shards. The slot is complete then.
pub(super) fn complete(slot: &Arc<File>, records: &[Record]) -> io::Result<()> {
    let table = serde_json::to_vec(records)?;
    let mut end = Vec::with_capacity(table.len() + END);
    end.extend_from_slice(&table);
    end.extend_from_slice(blake3::hash(&table).as_bytes());
    end.extend_from_slice(&(table.len() as u64).to_le_bytes());
    end.extend_from_slice(&MARK.to_le_bytes());
    let start = records.iter().map(Record::end).max().unwrap_or(0);
    // What an earlier, longer state has left.
    slot.set_len(start)?;
    slot.write_all_at(&end, start)
}

/// The shards in the slot; none if it is not complete.
pub(super) fn read(slot: &File) -> Vec<Record> {
    try_read(slot).ok().flatten().unwrap_or_default()
}

fn try_read(slot: &File) -> io::Result<Option<Vec<Record>>> {
    let length = slot.metadata()?.len();
    let Some(start) = length.checked_sub(END as u64) else {
        return Ok(None);
    };
    let mut end = [0; END];
    slot.read_exact_at(&mut end, start)?;
    let (checksum, numbers) = end.split_at(blake3::OUT_LEN);
    let (bytes, mark) = numbers.split_at(size_of::<u64>());
    let number = |bytes: &[u8]| bytes.try_into().map_or(0, u64::from_le_bytes);
    let bytes = number(bytes);
    if number(mark) != MARK || bytes > start.min(MOST_BYTES) {
        return Ok(None);
    }
    let mut table = vec![0; bytes as usize];
    slot.read_exact_at(&mut table, start - bytes)?;
    if blake3::hash(&table).as_bytes() != checksum {
        return Ok(None);
    }
    let records: Vec<Record> = serde_json::from_slice(&table)?;
    let fits = |record: &Record| record.end() <= start - bytes;
    Ok(records.iter().all(fits).then_some(records))
}

#[cfg(test)]
mod tests {
    use burn::tensor::TensorData;

    use super::*;
    use crate::checkpoint::shard::Shard;

    fn values(value: f32) -> StateValues {
        StateValues {
            tensors: vec![("weight".to_owned(), TensorData::from([value, 2.0]))],
            ..StateValues::default()
        }
    }

    fn record(entry: FileEntry) -> Record {
        Record {
            moment: Moment {
                generation: 1,
                number: 2,
                ranks: 3,
                step: 4,
            },
            rank: 0,
            size: 1,
            entry,
            meta: Value::Null,
            start: 0,
        }
    }

    #[test]
    fn a_slot_is_complete_or_empty() {
        let slot = Arc::new(tempfile::tempfile().unwrap());
        assert!(read(&slot).is_empty());
        let entry = write(&slot, "a".to_owned(), values(1.0)).unwrap();
        assert!(read(&slot).is_empty());
        complete(&slot, &[record(entry.clone())]).unwrap();
        let found = read(&slot);
        assert_eq!(found.len(), 1);
        assert_eq!(found[0].moment.step, 4);
        let shard = Shard::within(slot.clone(), 0, &entry).unwrap();
        let weight = shard.read("weight").unwrap();
        assert_eq!(weight, TensorData::from([1.0f32, 2.0]));
        begin(&slot).unwrap();
        assert!(read(&slot).is_empty());
        write(&slot, "a".to_owned(), values(3.0)).unwrap();
        assert!(read(&slot).is_empty());
    }

    #[test]
    fn damage_is_noticed() {
        let slot = Arc::new(tempfile::tempfile().unwrap());
        let entry = write(&slot, "a".to_owned(), values(1.0)).unwrap();
        complete(&slot, &[record(entry)]).unwrap();
        let length = slot.metadata().unwrap().len();
        for at in [length - 1, length - 9, length - 17, length - END as u64 - 1] {
            let mut byte = [0];
            slot.read_exact_at(&mut byte, at).unwrap();
            slot.write_all_at(&[byte[0] ^ 0x80], at).unwrap();
            assert!(read(&slot).is_empty(), "{at} of {length}");
            slot.write_all_at(&byte, at).unwrap();
            assert_eq!(read(&slot).len(), 1);
        }
        slot.set_len(length - 1).unwrap();
        assert!(read(&slot).is_empty());
    }
}
