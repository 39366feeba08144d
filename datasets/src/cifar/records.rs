//! One file of records: label bytes, then the planes of an image.

use super::{PIXELS, Published};
use crate::DatasetError;
use crate::cifar::locate::{Content, Place};

/// A file with verified size and labels.
#[derive(Debug)]
pub(super) struct Records {
    content: Content,
    /// Number of label bytes at the start of each record.
    label_bytes: usize,
}

impl Records {
    /// Opens `file` and checks that it consists of whole records with possible labels.
    pub(super) fn open(
        published: &Published,
        place: &mut Place,
        file: &str,
    ) -> Result<Self, DatasetError> {
        let path = place.path(file);
        let records = Records {
            content: place.content(file)?,
            label_bytes: published.labels.len(),
        };
        let len = records.content.bytes().len();
        if len == 0 || !len.is_multiple_of(published.record_len()) {
            return Err(DatasetError::Records {
                path,
                len: len as u64,
                record_len: published.record_len() as u64,
            });
        }
        for (byte, label) in published.labels.iter().enumerate() {
            let unknown = |&value: &u8| value >= label.classes;
            if let Some((record, value)) = records.first_label(byte, unknown) {
                let (name, most) = (label.name, label.classes.saturating_sub(1));
                return Err(DatasetError::Malformed {
                    path,
                    offset: (record * published.record_len() + byte) as u64,
                    reason: format!("{name} {value} of record {record} is outside 0 to {most}"),
                });
            }
        }
        Ok(records)
    }

    /// Number of records.
    pub(super) fn len(&self) -> usize {
        self.content.bytes().len() / self.record_len()
    }

    /// Byte `byte` of every record.
    pub(super) fn labels(&self, byte: usize) -> impl Iterator<Item = u8> {
        let records = self.content.bytes().chunks_exact(self.record_len());
        records.filter_map(move |record| record.get(byte).copied())
    }

    /// The planes of an image.
    pub(super) fn pixels(&self, record: usize) -> Option<&[u8]> {
        let start = record.checked_mul(self.record_len())? + self.label_bytes;
        self.content.bytes().get(start..start.checked_add(PIXELS)?)
    }

    fn first_label(&self, byte: usize, is: impl Fn(&u8) -> bool) -> Option<(usize, u8)> {
        self.labels(byte).enumerate().find(|(_, label)| is(label))
    }

    fn record_len(&self) -> usize {
        self.label_bytes + PIXELS
    }
}
